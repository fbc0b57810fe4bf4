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
    mapping: NonNull<u8>,
    mapping_bytes: usize,
    /// The first descriptor, aligned to a huge page.
    first: NonNull<MaybeUninit<Page>>,
    descriptors: usize,
}

impl Memory {
    /// Maps memory for a number of descriptors.
    pub(super) fn new(descriptors: usize, pages: PageSize) -> Result<Memory> {
        let bytes =
            descriptors.checked_mul(size_of::<Page>()).and_then(|b| b.checked_add(HUGE_PAGE));
        let mapping_bytes = bytes.context("the descriptors do not fit into the address space")?;
        // SAFETY: the kernel chooses the address, so the new mapping replaces no existing one.
        let mapping = unsafe {
            let access = ProtFlags::READ | ProtFlags::WRITE;
            let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
            mmap_anonymous(null_mut(), mapping_bytes, access, flags)
        };
        let mapping =
            mapping.with_context(|| format!("mapping {}", Bytes(mapping_bytes as u64)))?;
        let mapping = NonNull::new(mapping.cast::<u8>()).context("the mapping is at address 0")?;
        let advice = match pages {
            PageSize::Huge => Advice::LinuxHugepage,
            PageSize::Small => Advice::LinuxNoHugepage,
        };
        // A host without huge pages refuses the advice. This is no error: the bench only takes longer.
        // SAFETY: the advice is for the mapping that was made above.
        let _ = unsafe { madvise(mapping.as_ptr().cast(), mapping_bytes, advice) };
        // SAFETY: the offset is less than a huge page, and the mapping is a huge page longer than
        // the descriptors.
        let first = unsafe { mapping.add(mapping.align_offset(HUGE_PAGE)) }.cast();
        Ok(Memory { mapping, mapping_bytes, first, descriptors })
    }

    /// Returns the memory as slots for descriptors.
    pub(super) fn slots(&mut self) -> &mut [MaybeUninit<Page>] {
        // SAFETY: the slots lie within the mapping, are aligned to 2 MiB, and are borrowed only
        // through `self`.
        unsafe { slice::from_raw_parts_mut(self.first.as_ptr(), self.descriptors) }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: `mapping` is the whole mapping that `new` made, and no borrow of its slots
        // remains.
        let _ = unsafe { munmap(self.mapping.as_ptr().cast(), self.mapping_bytes) };
    }
}
