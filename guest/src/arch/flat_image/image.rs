//! Tells where the kernel's image and its boot page tables lie.

use core::ops::Range;
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};
use hotmem::{BootRange, Bytes};

/// The address at which the image is linked and runs; see `link.ld` beside this file.
pub(in crate::arch) const KERNEL_BASE: u64 = 0xffff_ffff_8000_0000;
/// The number of 2 MiB pages of the direct map that the boot code maps, from the image's start on.
pub(in crate::arch) const BOOT_PAGES: u64 = 8;
const PAGE: u64 = 2 << 20;
const GIB: u64 = 1 << 30;

/// Memory that the loader uses and no table lists.
pub(crate) const LOADER_MEMORY: BootRange = BootRange { start: 0, len: Bytes::ZERO };

/// The physical addresses of the image and of the loader's device tree, and the number of 2 MiB pages of
/// the direct map that the boot code has mapped for the tree, from its page on. The boot code writes them.
#[unsafe(no_mangle)]
static boot_image_address: AtomicU64 = AtomicU64::new(0);
#[unsafe(no_mangle)]
static boot_tree_address: AtomicU64 = AtomicU64::new(0);
#[unsafe(no_mangle)]
static boot_tree_pages: AtomicU64 = AtomicU64::new(0);

unsafe extern "C" {
    /// The image's first byte.
    static image_start: u8;
    /// One past the image's last byte, `.bss` included.
    static image_end: u8;
}

/// Returns the physical addresses of the image, page-aligned.
pub(crate) fn image() -> Range<u64> {
    let len = (&raw const image_end).addr() - (&raw const image_start).addr();
    let start = boot_image_address.load(Relaxed);
    start..start + len as u64
}

/// Returns the physical addresses that the boot code has mapped in the direct map: the first range
/// from the image's start on, the second with the loader's device tree; it is empty if the tree is not
/// mapped.
pub(crate) fn mapped() -> [Range<u64>; 2] {
    // The boot code maps no page beyond the GiB in which a range starts.
    let pages = |address: u64, count: u64| {
        let start = address & !(PAGE - 1);
        start..(start + count * PAGE).min((start & !(GIB - 1)) + GIB)
    };
    let (image, tree) = (boot_image_address.load(Relaxed), boot_tree_address.load(Relaxed));
    [pages(image, BOOT_PAGES), pages(tree, boot_tree_pages.load(Relaxed))]
}

/// Returns the physical address of a pointer into the image, or `None` for other pointers.
#[inline]
pub(crate) fn phys(pointer: *const u8) -> Option<u64> {
    let offset = (pointer.expose_provenance() as u64).checked_sub(KERNEL_BASE)?;
    Some(offset + boot_image_address.load(Relaxed))
}
