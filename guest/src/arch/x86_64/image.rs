//! Tells where the kernel's image, its boot stack and its boot page tables lie.

use core::ops::Range;
use hotmem::{BootRange, Bytes};

/// The difference between the kernel's virtual and physical addresses; see `link.ld` beside this file.
pub(super) const KERNEL_BASE: u64 = 0xffff_ffff_8000_0000;
/// The first MiB, which holds firmware data and the loader's tables.
pub(crate) const LOADER_MEMORY: BootRange = BootRange { start: 0, len: Bytes::mib(1) };

/// The number of 2 MiB pages of the boot mapping.
pub(super) const BOOT_PAGES: u64 = 8;
/// The size of a CPU's stack. That of the first CPU is the boot stack.
pub(super) const STACK_BYTES: u64 = 16 << 10;
/// The size of the page below the boot stack, which is not mapped.
const GUARD_BYTES: u64 = 4 << 10;
/// Flags of an entry for a table: present, writable, accessed, dirty.
pub(super) const TABLE_FLAGS: u64 = 0x63;
/// Flags of an entry for a 2 MiB page.
pub(super) const PAGE_FLAGS: u64 = 0xe3;

unsafe extern "C" {
    /// The root of the page tables.
    pub(super) static mut boot_root: [u64; 512];
    /// The table that the first root entry points to while code runs at its physical address.
    static boot_kernel_pointers_low: u8;
    /// The image's first byte.
    static kernel_start: u8;
    /// One past the image's last byte, `.bss` included.
    static kernel_end: u8;
    /// The page below the boot stack.
    static boot_guard: u8;
}

/// Returns whether `addr` lies in the page below the boot stack, which is not mapped.
pub(super) fn is_guard(addr: u64) -> bool {
    let guard = (&raw const boot_guard).expose_provenance() as u64;
    addr.wrapping_sub(guard) < GUARD_BYTES
}

/// Returns the first root entry, which maps the kernel at its physical address.
pub(super) fn identity_entry() -> u64 {
    (&raw const boot_kernel_pointers_low).expose_provenance() as u64 - KERNEL_BASE + TABLE_FLAGS
}

/// Returns the physical addresses of the image, page-aligned.
pub(crate) fn image() -> Range<u64> {
    let phys = |symbol: *const u8| symbol.expose_provenance() as u64 - KERNEL_BASE;
    phys(&raw const kernel_start)..phys(&raw const kernel_end)
}

/// Returns the physical addresses that the boot code has mapped in the direct map. The kernel and the
/// loader's tables lie there. The second range is empty.
pub(crate) fn mapped() -> [Range<u64>; 2] {
    [0..BOOT_PAGES << 21, 0..0]
}

/// Returns the physical address of a pointer into the image, or `None` for other pointers.
#[inline]
pub(crate) fn phys(pointer: *const u8) -> Option<u64> {
    (pointer.expose_provenance() as u64).checked_sub(KERNEL_BASE)
}
