//! Boots instances in this process, and calls them by the C interface.

use hotmem_c::*;
use std::alloc::{Layout, alloc, alloc_zeroed, dealloc};
use std::ptr::null;

pub(crate) const MIB: u64 = 1 << 20;
/// The physical address of the end of boot memory. Memory above it can be announced.
pub(crate) const BOOT_END: u64 = 8 * MIB;
/// The physical address of the end of memory.
pub(crate) const MEMORY_END: u64 = 64 * MIB;

/// Heap memory that simulates physical memory or holds an object.
pub(crate) struct Heap {
    start: *mut u8,
    layout: Layout,
}

impl Heap {
    /// Returns memory for an object, filled with zeroes.
    pub(crate) fn zeroes<T>() -> Heap {
        let layout = Layout::new::<T>();
        // SAFETY: `layout` is not empty, because no test passes an empty type.
        Heap::of(unsafe { alloc_zeroed(layout) }, layout)
    }

    /// Returns pages with undefined contents.
    fn pages(bytes: u64) -> Heap {
        let layout = Layout::from_size_align(size(bytes), 4096).unwrap();
        // SAFETY: `layout` is not empty.
        Heap::of(unsafe { alloc(layout) }, layout)
    }

    fn of(start: *mut u8, layout: Layout) -> Heap {
        assert!(!start.is_null());
        Heap { start, layout }
    }

    pub(crate) fn pointer<T>(&self) -> *mut T {
        self.start.cast()
    }
}

impl Drop for Heap {
    fn drop(&mut self) {
        // SAFETY: `start` was allocated with `layout`.
        unsafe { dealloc(self.start, self.layout) };
    }
}

fn size(bytes: u64) -> usize {
    usize::try_from(bytes).unwrap()
}

pub(crate) struct Instance {
    object: Heap,
    pub(crate) memory: Heap,
}

impl Instance {
    /// Makes an instance that has not booted.
    pub(crate) fn new() -> Instance {
        let memory = Heap::pages(MEMORY_END);
        Instance { object: Heap::zeroes::<hotmem>(), memory }
    }

    /// Makes an instance and boots it with `BOOT_END` bytes.
    pub(crate) fn boot(hooks: Option<&hotmem_hooks>) -> Instance {
        let instance = Instance::new();
        let hooks = hooks.map_or(null(), |hooks| &raw const *hooks);
        let config = hotmem_config { hooks, mappable_end: MEMORY_END, low_end: 0, cpus: 5 };
        // SAFETY: `as_ptr()` points to a `struct hotmem` that was zeroes, and `memory` is the
        // instance's own memory from physical address 0 up to `MEMORY_END`.
        unsafe {
            assert_eq!(hotmem_configure(instance.as_ptr(), &config), 0);
            assert_eq!(hotmem_boot_add(instance.as_ptr(), 0, BOOT_END, HOTMEM_RAM), 0);
            assert_eq!(hotmem_boot_add(instance.as_ptr(), 0, 4097, HOTMEM_RESERVED), 0);
            assert_eq!(hotmem_boot(instance.as_ptr(), instance.memory.pointer(), 0), 0);
        }
        instance
    }

    pub(crate) fn as_ptr(&self) -> *mut hotmem {
        self.object.pointer()
    }

    pub(crate) fn counts(&self) -> hotmem_counts {
        let mut counts = hotmem_counts::default();
        // SAFETY: `as_ptr()` points to an instance.
        assert_eq!(unsafe { hotmem_get_counts(self.as_ptr(), &mut counts) }, 0);
        counts
    }

    /// Allocates frames, and writes to each of them.
    pub(crate) fn alloc(&self, request: &hotmem_request) -> Result<u64, i32> {
        let mut paddr = 0;
        // SAFETY: `as_ptr()` points to an instance, and the frames that it allocates lie in `memory`.
        unsafe {
            match hotmem_alloc(self.as_ptr(), request, &mut paddr) {
                0 => {
                    let start = self.pointer(paddr);
                    start.write_bytes(0xa5, size(request.frames * 4096));
                    Ok(paddr)
                }
                code => Err(code),
            }
        }
    }

    /// Returns the address at which the direct map has `paddr`.
    pub(crate) fn pointer(&self, paddr: u64) -> *mut u8 {
        self.memory.pointer::<u8>().wrapping_add(size(paddr))
    }

    pub(crate) fn free(&self, paddr: u64, frames: u64) -> i32 {
        // SAFETY: tests free only frames that they have allocated and do not use, or frames that
        // are refused.
        unsafe { hotmem_free(self.as_ptr(), paddr, frames) }
    }

    /// Announces and adds all memory above boot memory, and puts it online.
    pub(crate) fn plug(&self, online_type: u32) {
        // SAFETY: `as_ptr()` points to an instance, and the range that is added is its own memory.
        unsafe {
            assert_eq!(hotmem_announce(self.as_ptr(), BOOT_END, MEMORY_END - BOOT_END, 0), 0);
            assert_eq!(hotmem_add(self.as_ptr(), BOOT_END, MEMORY_END - BOOT_END), 0);
            assert_eq!(
                hotmem_online(self.as_ptr(), BOOT_END, MEMORY_END - BOOT_END, online_type),
                0
            );
        }
    }

    pub(crate) fn remove(&self, paddr: u64, len: u64) -> (i32, hotmem_removal) {
        let mut removal = hotmem_removal::default();
        // SAFETY: `as_ptr()` points to an instance.
        let code = unsafe { hotmem_remove(self.as_ptr(), paddr, len, &mut removal) };
        (code, removal)
    }

    pub(crate) fn state(&self, paddr: u64, len: u64) -> (i32, u64) {
        let mut same_state_len = 0;
        // SAFETY: `as_ptr()` points to an instance.
        let state = unsafe { hotmem_state(self.as_ptr(), paddr, len, &mut same_state_len) };
        (state, same_state_len)
    }
}

pub(crate) fn request(frames: u64) -> hotmem_request {
    hotmem_request { frames, ..hotmem_request::default() }
}
