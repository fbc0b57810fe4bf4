//! Pages with an owner.

use crate::{UsageKind, global_allocator};
use axerrno::AxResult;
use hotmem::geometry::FRAME_SIZE;
use memory_addr::{PhysAddr, VirtAddr};

/// Contiguous pages, which are freed when it is dropped.
#[derive(Debug)]
pub struct GlobalPage {
    start: usize,
    pages: usize,
}

impl GlobalPage {
    /// Allocates one page.
    pub fn alloc() -> AxResult<GlobalPage> {
        GlobalPage::alloc_contiguous(1, FRAME_SIZE as usize)
    }

    /// Allocates one page of zeros.
    pub fn alloc_zero() -> AxResult<GlobalPage> {
        let mut page = GlobalPage::alloc()?;
        page.as_slice_mut().fill(0);
        Ok(page)
    }

    /// Allocates so many pages, aligned to so many bytes.
    pub fn alloc_contiguous(pages: usize, align: usize) -> AxResult<GlobalPage> {
        let start = global_allocator().alloc_pages(pages, align, UsageKind::Global)?;
        Ok(GlobalPage { start, pages })
    }

    /// Returns the address of the first byte.
    pub fn start_vaddr(&self) -> VirtAddr {
        self.start.into()
    }

    /// Returns the physical address of the first byte.
    pub fn start_paddr(&self, virt_to_phys: impl FnOnce(VirtAddr) -> PhysAddr) -> PhysAddr {
        virt_to_phys(self.start_vaddr())
    }

    /// Returns how many bytes it has.
    pub fn size(&self) -> usize {
        self.pages * FRAME_SIZE as usize
    }

    /// Returns the bytes.
    pub fn as_slice(&self) -> &[u8] {
        // SAFETY: the pages are mapped, and this value's.
        unsafe { core::slice::from_raw_parts(self.start_vaddr().as_ptr(), self.size()) }
    }

    /// Returns the bytes, to be changed.
    pub fn as_slice_mut(&mut self) -> &mut [u8] {
        // SAFETY: the pages are mapped, and this value's.
        unsafe { core::slice::from_raw_parts_mut(self.start_vaddr().as_mut_ptr(), self.size()) }
    }
}

impl Drop for GlobalPage {
    fn drop(&mut self) {
        global_allocator().dealloc_pages(self.start, self.pages, UsageKind::Global);
    }
}
