//! The machine whose guest makes the memory of CXL devices RAM and device memory again.

use super::{config::Config, cxl::Cxl, emulator::Emulator};
use hotmem::Bytes;

/// The boot memory without descriptors of the devices' memory.
const BOOT_MEMORY: Bytes = Bytes::mib(128);

impl Config {
    /// Adds volatile devices, between which addresses alternate, and makes the reference guest bind them
    /// with the fewest descriptors. Returns `None` if no QEMU at hand has such devices.
    #[must_use]
    pub fn with_reconfigurable_cxl(self, devices: &[Bytes]) -> Option<Config> {
        let size = devices.iter().copied().fold(Bytes::ZERO, |sum, size| sum + size);
        // A page of descriptors for each compound, and page tables. The tails of compounds share a page.
        // The addresses need not begin at a whole GiB, so 1 GiB may have no whole compound.
        let is_large = size > Bytes::gib(1) && size.0.is_multiple_of(Bytes::gib(1).0);
        let (compound, share) = if is_large { ("1G", 16 << 10) } else { ("2M", 256) };
        let boot_memory = BOOT_MEMORY + Bytes((size.0 / share).next_multiple_of(2 << 20));
        let (emulator, cxl) = (Emulator::with_cxl()?, Some(Cxl::volatile(devices)));
        let config = Config { emulator, boot_memory, cxl, ..self };
        let config =
            config.with_guest_option("cxl", "devdax").with_guest_option("ways", devices.len());
        Some(config.with_guest_option("align", compound).with_guest_option("tails", "shared"))
    }
}
