//! Maps memory for descriptors, with pages of a chosen size.

use anyhow::{Context, Result};
use hotmem::Bytes;
use hotmem_guest::descriptor::Page;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};
use std::{
    mem::MaybeUninit,
    ptr::{NonNull, null_mut},
    slice,
};

const HUGE_PAGE: usize = 2 << 20;

/// The size of the host's pages.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum PageSize {
    /// 2 MiB, if the host has huge pages.
    Huge,
    /// 4 KiB.
    Small,
}

/// Anonymous memory. The host allocates it when it is first written. Dropping the value unmaps the
/// memory.
pub(super) struct Memory {
    mapped: NonNull<u8>,
    mapped_bytes: usize,
    slots: NonNull<MaybeUninit<Page>>,
    count: usize,
}

impl Memory {
    /// Maps memory for `count` descriptors.
    pub(super) fn new(count: usize, pages: PageSize) -> Result<Memory> {
        let bytes = count.checked_mul(size_of::<Page>()).and_then(|b| b.checked_add(HUGE_PAGE));
        let mapped_bytes = bytes.context("the descriptors do not fit into the address space")?;
        // SAFETY: the kernel chooses the address, so the new mapping replaces no existing one.
        let mapped = unsafe {
            let access = ProtFlags::READ | ProtFlags::WRITE;
            let kind = MapFlags::PRIVATE | MapFlags::NORESERVE;
            mmap_anonymous(null_mut(), mapped_bytes, access, kind)
        };
        let mapped = mapped.with_context(|| format!("mapping {}", Bytes(mapped_bytes as u64)))?;
        let mapped = NonNull::new(mapped.cast::<u8>()).context("the mapping is at address 0")?;
        let advice = match pages {
            PageSize::Huge => Advice::LinuxHugepage,
            PageSize::Small => Advice::LinuxNoHugepage,
        };
        // A host without huge pages refuses the advice. This is no error: the bench only takes longer.
        // SAFETY: the advice is for the mapping that was made above.
        let _ = unsafe { madvise(mapped.as_ptr().cast(), mapped_bytes, advice) };
        // SAFETY: the offset is less than a huge page, and the mapping is a huge page longer than
        // the descriptors.
        let slots = unsafe { mapped.add(mapped.align_offset(HUGE_PAGE)) }.cast();
        Ok(Memory { mapped, mapped_bytes, slots, count })
    }

    /// Returns the memory as slots for descriptors.
    pub(super) fn slots(&mut self) -> &mut [MaybeUninit<Page>] {
        // SAFETY: the slots lie within the mapping, are aligned to 2 MiB, and are borrowed only
        // through `self`.
        unsafe { slice::from_raw_parts_mut(self.slots.as_ptr(), self.count) }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: `mapped` is the whole mapping that `new` made, and no borrow of its slots
        // remains.
        let _ = unsafe { munmap(self.mapped.as_ptr().cast(), self.mapped_bytes) };
    }
}
