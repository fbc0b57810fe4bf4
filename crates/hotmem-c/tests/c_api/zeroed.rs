//! Tests frames that are known to be zero.

use crate::instance::{BOOT_END, Instance, MEMORY_END, request};
use hotmem_c::*;
use std::ptr::{null, null_mut};

/// The frames of a pageblock.
pub(crate) const PAGEBLOCK: u64 = 512;

impl Instance {
    /// Allocates frames. Returns their address, and whether they are known to be zero.
    pub(crate) fn alloc_asking(&self, request: &hotmem_request) -> Result<(u64, bool), i32> {
        let (mut paddr, mut is_zero) = (0, false);
        // SAFETY: `as_ptr()` points to an instance.
        match unsafe {
            hotmem_alloc_with_contents(self.as_ptr(), request, &mut paddr, &mut is_zero)
        } {
            0 => Ok((paddr, is_zero)),
            code => Err(code),
        }
    }

    /// Returns the next pageblock for an idle kernel to zero.
    fn alloc_unzeroed(&self) -> Result<u64, i32> {
        let mut paddr = 0;
        // SAFETY: `as_ptr()` points to an instance.
        match unsafe { hotmem_alloc_unzeroed(self.as_ptr(), &mut paddr) } {
            0 => Ok(paddr),
            code => Err(code),
        }
    }

    pub(crate) fn fill(&self, paddr: u64, frames: u64, byte: u8) {
        let start = self.pointer(paddr);
        // SAFETY: the caller has allocated the frames, which lie in the memory of the instance.
        unsafe { start.write_bytes(byte, usize::try_from(frames * 4096).unwrap()) };
    }

    pub(crate) fn is_filled_with_zeroes(&self, paddr: u64, frames: u64) -> bool {
        let start = self.pointer(paddr);
        // SAFETY: as above.
        (0..usize::try_from(frames * 4096).unwrap()).all(|i| unsafe { start.add(i).read() } == 0)
    }
}

#[test]
fn an_idle_kernel_zeroes_free_memory_and_allocations_know() {
    let instance = Instance::boot(None);
    assert_eq!(instance.alloc_unzeroed(), Err(HOTMEM_ENOENT), "no marks are kept");
    // SAFETY: `as_ptr()` points to an instance.
    assert_eq!(unsafe { hotmem_keep_zero_marks(instance.as_ptr()) }, 0);
    let mut zeroed = 0;
    let last_error = loop {
        match instance.alloc_unzeroed() {
            Ok(paddr) => {
                instance.fill(paddr, PAGEBLOCK, 0);
                // SAFETY: the pageblock was allocated above, and is zero.
                let code = unsafe { hotmem_free_zeroed(instance.as_ptr(), paddr, PAGEBLOCK) };
                assert_eq!(code, 0);
                zeroed += 1;
            }
            Err(code) => break code,
        }
    };
    assert_eq!(last_error, HOTMEM_ENOENT);
    assert_ne!(zeroed, 0);
    let (paddr, is_zero) = instance.alloc_asking(&request(PAGEBLOCK)).unwrap();
    assert!(is_zero && instance.is_filled_with_zeroes(paddr, PAGEBLOCK));
    instance.fill(paddr, PAGEBLOCK, 0xa5);
    assert_eq!(instance.free(paddr, PAGEBLOCK), 0);
    let here = hotmem_request { at: paddr, flags: HOTMEM_AT, ..request(PAGEBLOCK) };
    assert_eq!(instance.alloc_asking(&here), Ok((paddr, false)));
}

#[test]
fn memory_that_was_added_as_zero_is_known_to_be_zero() {
    for keeps_marks in [false, true] {
        let instance = Instance::boot(None);
        let (h, len) = (instance.as_ptr(), MEMORY_END - BOOT_END);
        instance.fill(BOOT_END, len / 4096, 0);
        // SAFETY: `h` points to an instance, and the memory is the instance's own, and zero.
        unsafe {
            if keeps_marks {
                assert_eq!(hotmem_keep_zero_marks(h), 0);
            }
            assert_eq!(hotmem_announce(h, BOOT_END, len, 0), 0);
            assert_eq!(hotmem_add_zeroed(h, BOOT_END, len), 0);
            assert_eq!(hotmem_add_zeroed(h, BOOT_END, len), HOTMEM_EEXIST);
            assert_eq!(hotmem_online(h, BOOT_END, len, HOTMEM_ONLINE_MOVABLE), 0);
        }
        let movable = hotmem_request { flags: HOTMEM_MOVABLE, ..request(PAGEBLOCK) };
        let (paddr, is_zero) = instance.alloc_asking(&movable).unwrap();
        assert!(paddr >= BOOT_END);
        assert_eq!(is_zero, keeps_marks);
    }
}

#[test]
fn zeroed_frames_are_zero_whatever_they_contained() {
    let instance = Instance::boot(None);
    let dirty = instance.alloc(&request(3)).unwrap();
    assert_eq!(instance.free(dirty, 3), 0);
    let here = hotmem_request { at: dirty, flags: HOTMEM_AT, ..request(3) };
    let mut paddr = 0;
    // SAFETY: `as_ptr()` points to an instance.
    assert_eq!(unsafe { hotmem_alloc_zeroed(instance.as_ptr(), &here, &mut paddr) }, 0);
    assert_eq!(paddr, dirty);
    assert!(instance.is_filled_with_zeroes(paddr, 3));
}

#[test]
fn missing_pointers_and_bad_frames_are_refused() {
    let instance = Instance::boot(None);
    let (h, mut paddr, mut is_zero) = (instance.as_ptr(), 0, false);
    let used = instance.counts().used;
    // SAFETY: `h` points to an instance, and no call frees a frame that is in use.
    unsafe {
        assert_eq!(hotmem_keep_zero_marks(null_mut()), HOTMEM_EFAULT);
        assert_eq!(hotmem_alloc_with_contents(h, null(), null_mut(), &mut is_zero), HOTMEM_EFAULT);
        assert_eq!(hotmem_alloc_with_contents(h, null(), &mut paddr, null_mut()), HOTMEM_EFAULT);
        assert_eq!(hotmem_alloc_zeroed(h, null(), null_mut()), HOTMEM_EFAULT);
        assert_eq!(hotmem_alloc_unzeroed(h, null_mut()), HOTMEM_EFAULT);
        assert_eq!(hotmem_free_zeroed(h, 1, 1), HOTMEM_EINVAL);
        assert_eq!(hotmem_free_zeroed(h, !4095, 1), HOTMEM_ERANGE);
        let free = instance.alloc(&request(1)).unwrap();
        assert_eq!(instance.free(free, 1), 0);
        assert_eq!(hotmem_free_zeroed(h, free, 1), HOTMEM_ENOENT);
    }
    assert_eq!(instance.counts().used, used);
}
