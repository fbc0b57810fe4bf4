//! Tells where the kernel's image, its boot stack and its boot page tables lie.

/// The difference between the kernel's virtual and physical addresses; see `link.ld`.
pub(crate) const KERNEL_BASE: u64 = 0xffff_ffff_8000_0000;
/// The size of the boot mapping, which begins at physical address 0. The kernel and the loader's
/// tables lie within it.
pub(crate) const MAPPED_BYTES: u64 = BOOT_PAGES << 21;

/// The number of 2 MiB pages of the boot mapping.
pub(crate) const BOOT_PAGES: u64 = 8;
/// The size of the boot stack.
pub(crate) const STACK_BYTES: u64 = 256 << 10;
/// The value of the stack's lowest word, unless the stack was overrun.
pub(crate) const STACK_MARK: u64 = 0x5afe_57ac_4bed_f00d;
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
    /// The stack's lowest word.
    static boot_stack: u64;
}

/// Returns whether the stack was overrun. No unmapped page lies below the stack, so an overrun
/// causes no fault, and the kernel must check for it.
pub(crate) fn stack_is_overrun() -> bool {
    // SAFETY: the boot code has written `boot_stack`, and nothing writes to it unless the stack is
    // overrun.
    unsafe { (&raw const boot_stack).read_volatile() != STACK_MARK }
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
