//! The kernel's image, its boot stack and its boot page tables.

/// The difference between the kernel's virtual and physical addresses; see `link.ld`.
pub(crate) const KERNEL_BASE: u64 = 0xffff_ffff_8000_0000;
/// The size of the boot mapping, from physical address 0 on. It covers the kernel and the loaders'
/// tables.
pub(crate) const MAPPED_BYTES: u64 = BOOT_PAGES << 21;

/// The number of 2 MiB pages of the boot mapping.
pub(crate) const BOOT_PAGES: u64 = 8;
/// The size of the boot stack.
pub(crate) const STACK_BYTES: u64 = 256 << 10;
/// The value of the stack's last word, unless the stack was overrun.
pub(crate) const STACK_MARK: u64 = 0x5afe_57ac_4bed_f00d;
/// Flags of an entry for a table: present, writable, accessed, dirty.
pub(crate) const TABLE: u64 = 0x63;
/// Flags of an entry for a 2 MiB page.
pub(crate) const PAGE: u64 = 0xe3;

unsafe extern "C" {
    /// The root of the page tables.
    pub(crate) static mut boot_root: [u64; 512];
    /// The table that the first root entry pointed to while the kernel ran at its load address.
    static boot_kernel_pointers_low: u8;
    /// The image's first byte.
    static kernel_start: u8;
    /// One past the image's last byte, `.bss` included.
    static kernel_end: u8;
    /// The stack's last word.
    static boot_stack: u64;
}

/// Returns whether the stack was overrun. There is no unmapped page below it, so this must be
/// checked.
pub(crate) fn stack_is_overrun() -> bool {
    // SAFETY: nothing else uses the word.
    unsafe { (&raw const boot_stack).read_volatile() != STACK_MARK }
}

/// Returns the root entry that maps the kernel at its load address.
pub(crate) fn identity_entry() -> u64 {
    (&raw const boot_kernel_pointers_low).expose_provenance() as u64 - KERNEL_BASE + TABLE
}

/// Returns the physical addresses of the image, page-aligned.
pub(crate) fn image() -> core::ops::Range<u64> {
    let phys = |symbol: *const u8| symbol.expose_provenance() as u64 - KERNEL_BASE;
    phys(&raw const kernel_start)..phys(&raw const kernel_end)
}
