//! Memory for a descriptor map, with pages of a chosen size.

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

/// Pages of the host.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum PageSize {
    /// 2 MiB, where the host has some.
    Huge,
    /// 4 KiB.
    Small,
}

/// Anonymous memory, which the host allocates when it is first written, and which is unmapped when
/// this is dropped.
pub(super) struct Memory {
    mapped: NonNull<u8>,
    mapped_bytes: usize,
    slots: NonNull<MaybeUninit<Page>>,
    count: usize,
}

impl Memory {
    /// Allocates memory for this many descriptors.
    pub(super) fn new(count: usize, pages: PageSize) -> Result<Memory> {
        let bytes = count.checked_mul(size_of::<Page>()).and_then(|b| b.checked_add(HUGE_PAGE));
        let mapped_bytes = bytes.context("more descriptors than addresses")?;
        // SAFETY: a new mapping at an address of the kernel's choice touches nothing that exists.
        let mapped = unsafe {
            let access = ProtFlags::READ | ProtFlags::WRITE;
            let kind = MapFlags::PRIVATE | MapFlags::NORESERVE;
            mmap_anonymous(null_mut(), mapped_bytes, access, kind)
        };
        let mapped = mapped.with_context(|| format!("mapping {}", Bytes(mapped_bytes as u64)))?;
        let mapped = NonNull::new(mapped.cast::<u8>()).context("a mapping at address 0")?;
        let advice = match pages {
            PageSize::Huge => Advice::LinuxHugepage,
            PageSize::Small => Advice::LinuxNoHugepage,
        };
        // SAFETY: the mapping just made. A host without huge pages refuses, which costs time only.
        let _ = unsafe { madvise(mapped.as_ptr().cast(), mapped_bytes, advice) };
        // SAFETY: less than a huge page further on, where the mapping has that much to spare.
        let slots = unsafe { mapped.add(mapped.align_offset(HUGE_PAGE)) }.cast();
        Ok(Memory { mapped, mapped_bytes, slots, count })
    }

    pub(super) fn slots(&mut self) -> &mut [MaybeUninit<Page>] {
        // SAFETY: within the mapping, aligned to 2 MiB, and nobody else knows of it.
        unsafe { slice::from_raw_parts_mut(self.slots.as_ptr(), self.count) }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: all of the mapping made in `new`; borrows of it have ended.
        let _ = unsafe { munmap(self.mapped.as_ptr().cast(), self.mapped_bytes) };
    }
}
