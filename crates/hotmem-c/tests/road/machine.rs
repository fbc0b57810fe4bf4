//! A machine in this process that is used through the C interface.

use hotmem_c::*;
use std::alloc::{Layout, alloc, alloc_zeroed, dealloc};
use std::ptr::null;

pub(crate) const MIB: u64 = 1 << 20;
/// The size of boot memory. The rest can be announced.
pub(crate) const BOOT: u64 = 8 * MIB;
/// All physical memory.
pub(crate) const ALL: u64 = 64 * MIB;

/// Heap memory that stands for physical memory or holds an object.
pub(crate) struct Heap {
    start: *mut u8,
    layout: Layout,
}

impl Heap {
    /// Returns memory for an object, all zeroes.
    pub(crate) fn zeroes<T>() -> Heap {
        let layout = Layout::new::<T>();
        // SAFETY: it is a layout of some bytes. The same holds below.
        Heap::of(unsafe { alloc_zeroed(layout) }, layout)
    }

    /// Returns pages with undefined contents.
    fn pages(bytes: u64) -> Heap {
        let layout = Layout::from_size_align(size(bytes), 4096).unwrap();
        // SAFETY: see above.
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
        // SAFETY: it was allocated like this.
        unsafe { dealloc(self.start, self.layout) };
    }
}

fn size(bytes: u64) -> usize {
    usize::try_from(bytes).unwrap()
}

pub(crate) struct Machine {
    object: Heap,
    pub(crate) memory: Heap,
}

impl Machine {
    /// Makes a machine that has not booted.
    pub(crate) fn fresh() -> Machine {
        let memory = Heap::pages(ALL);
        Machine { object: Heap::zeroes::<hotmem>(), memory }
    }

    /// Makes a machine and boots it with `BOOT` bytes.
    pub(crate) fn boot(hooks: Option<&hotmem_hooks>) -> Machine {
        let machine = Machine::fresh();
        let hooks = hooks.map_or(null(), |hooks| &raw const *hooks);
        let config = hotmem_config { hooks, reach: ALL, low_end: 0, cpus: 5 };
        // SAFETY: the memory is this machine's, and mapped there.
        unsafe {
            assert_eq!(hotmem_configure(machine.h(), &config), 0);
            assert_eq!(hotmem_boot_add(machine.h(), 0, BOOT, HOTMEM_RAM), 0);
            assert_eq!(hotmem_boot_add(machine.h(), 0, 4097, HOTMEM_RESERVED), 0);
            assert_eq!(hotmem_boot(machine.h(), machine.memory.pointer(), 0), 0);
        }
        machine
    }

    pub(crate) fn h(&self) -> *mut hotmem {
        self.object.pointer()
    }

    pub(crate) fn counts(&self) -> hotmem_counts {
        let mut counts = hotmem_counts::default();
        // SAFETY: it is a machine.
        assert_eq!(unsafe { hotmem_get_counts(self.h(), &mut counts) }, 0);
        counts
    }

    /// Allocates, and writes to each frame.
    pub(crate) fn alloc(&self, want: &hotmem_want) -> Result<u64, i32> {
        let mut paddr = 0;
        // SAFETY: it is a machine; what it allocates is mapped.
        unsafe {
            match hotmem_alloc(self.h(), want, &mut paddr) {
                0 => {
                    let start = self.memory.pointer::<u8>().wrapping_add(size(paddr));
                    start.write_bytes(0xa5, size(want.frames * 4096));
                    Ok(paddr)
                }
                code => Err(code),
            }
        }
    }

    pub(crate) fn free(&self, paddr: u64, frames: u64) -> i32 {
        // SAFETY: the tests free what they have allocated, or what is not allocated.
        unsafe { hotmem_free(self.h(), paddr, frames) }
    }

    /// Announces, adds and puts online all that is not boot memory.
    pub(crate) fn plug(&self, kind: u32) {
        // SAFETY: the memory is there.
        unsafe {
            assert_eq!(hotmem_announce(self.h(), BOOT, ALL - BOOT, 0), 0);
            assert_eq!(hotmem_add(self.h(), BOOT, ALL - BOOT), 0);
            assert_eq!(hotmem_online(self.h(), BOOT, ALL - BOOT, kind), 0);
        }
    }

    pub(crate) fn remove(&self, paddr: u64, len: u64) -> (i32, hotmem_removal) {
        let mut removal = hotmem_removal::default();
        // SAFETY: it is a machine.
        let code = unsafe { hotmem_remove(self.h(), paddr, len, &mut removal) };
        (code, removal)
    }

    pub(crate) fn state(&self, paddr: u64, len: u64) -> (i32, u64) {
        let mut same = 0;
        // SAFETY: it is a machine.
        let state = unsafe { hotmem_state(self.h(), paddr, len, &mut same) };
        (state, same)
    }
}

pub(crate) fn want(frames: u64) -> hotmem_want {
    hotmem_want { frames, ..hotmem_want::default() }
}
