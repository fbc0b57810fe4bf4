//! Tells where the kernel's image, its boot stack and its boot page tables lie.

/// The difference between the kernel's virtual and physical addresses; see `link.ld`.
pub(crate) const KERNEL_BASE: u64 = 0xffff_ffff_8000_0000;
/// The size of the boot mapping, which begins at physical address 0. The kernel and the loader's
/// tables lie within it.
pub(crate) const MAPPED_BYTES: u64 = BOOT_PAGES << 21;

/// The number of 2 MiB pages of the boot mapping.
pub(crate) const BOOT_PAGES: u64 = 8;
/// The size of a CPU's stack. That of the first CPU is the boot stack.
pub(crate) const STACK_BYTES: u64 = 16 << 10;
/// The size of the page below the boot stack, which is not mapped.
const GUARD_BYTES: u64 = 4 << 10;
/// Flags of an entry for a table: present, writable, accessed, dirty.
pub(crate) const TABLE_FLAGS: u64 = 0x63;
/// Flags of an entry for a 2 MiB page.
pub(crate) const PAGE_FLAGS: u64 = 0xe3;

unsafe extern "C" {
    /// The root of the page tables.
    pub(crate) static mut boot_root: [u64; 512];
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
pub(crate) fn is_guard(addr: u64) -> bool {
    let guard = (&raw const boot_guard).expose_provenance() as u64;
    addr.wrapping_sub(guard) < GUARD_BYTES
}

/// Returns the first root entry, which maps the kernel at its physical address.
pub(crate) fn identity_entry() -> u64 {
    (&raw const boot_kernel_pointers_low).expose_provenance() as u64 - KERNEL_BASE + TABLE_FLAGS
}

/// Returns the physical addresses of the image, page-aligned.
pub(crate) fn image() -> core::ops::Range<u64> {
    let phys = |symbol: *const u8| symbol.expose_provenance() as u64 - KERNEL_BASE;
    phys(&raw const kernel_start)..phys(&raw const kernel_end)
}
