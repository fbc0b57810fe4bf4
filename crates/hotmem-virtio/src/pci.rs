//! virtio devices on PCI (4.1): finds them, and drives their registers.
//!
//! The transport of the virtio-drivers crate needs registers behind pointers. This one needs
//! [`Registers`], so that it also serves kernels that hide the pointers of MMIO. [`Mmio`] is the
//! implementation for kernels that do not.

mod capabilities;
mod error;
mod mmio;
mod registers;
mod transport;

pub use error::PciError;
pub use mmio::Mmio;
pub use registers::{Registers, Width};
pub use transport::PciTransport;

use capabilities::Capabilities;
use core::ops::Range;
use core::ptr::NonNull;
use virtio_drivers::transport::DeviceType;
use virtio_drivers::transport::pci::VIRTIO_VENDOR_ID;
use virtio_drivers::transport::pci::bus::{Cam, ConfigurationAccess, DeviceFunction, MmioCam};

/// Finds the first device of this kind, and calls `map` with the physical addresses of its
/// registers, once for each BAR. Returns `None` if there is no such device.
///
/// The firmware must have assigned addresses to BARs and numbers to buses.
///
/// # Errors
/// [`PciError`].
pub fn find<C: ConfigurationAccess, R: Registers>(
    config: &mut C,
    kind: DeviceType,
    map: impl FnMut(Range<u64>) -> Option<R>,
) -> Result<Option<PciTransport<R>>, PciError> {
    let Some(function) = functions().find(|&function| is(config, function, kind)) else {
        return Ok(None);
    };
    // The upper half is the status register, whose bits are cleared by writing ones.
    let command = config.read_word(function, COMMAND) & 0xffff;
    config.write_word(function, COMMAND, command | MEMORY_SPACE | BUS_MASTER);
    let capabilities = Capabilities::read(config, function)?;
    PciTransport::new(kind, capabilities, config, function, map).map(Some)
}

/// Finds the first device of this kind by PCI Express's memory-mapped configuration space (ECAM),
/// as [`find`], for kernels whose code may use pointers to registers. `map` returns where it has
/// mapped the registers.
///
/// # Errors
/// [`PciError`].
///
/// # Safety
/// 256 MiB from `ecam` on are the configuration space, mapped and not cached, and nothing else uses
/// it during the call. Each pointer that `map` returns satisfies the requirements of [`Mmio::new`]
/// for all the addresses that `map` was called with.
#[allow(unsafe_code)]
pub unsafe fn find_mapped(
    ecam: *mut u8,
    kind: DeviceType,
    mut map: impl FnMut(Range<u64>) -> Option<NonNull<u8>>,
) -> Result<Option<PciTransport<Mmio>>, PciError> {
    // SAFETY: by the caller's promise.
    let mut config = unsafe { MmioCam::new(ecam, Cam::Ecam) };
    find(&mut config, kind, |registers| {
        let len = usize::try_from(registers.end - registers.start).ok()?;
        let start = map(registers)?;
        // SAFETY: by the caller's promise.
        Some(unsafe { Mmio::new(start, len) })
    })
}

const COMMAND: u8 = 4;
const MEMORY_SPACE: u32 = 1 << 1;
const BUS_MASTER: u32 = 1 << 2;
/// The PCI device ID of a device of type 0 (4.1.2).
const FIRST_ID: u16 = 0x1040;
/// The PCI device ID of a transitional balloon, which also supports the interface before version 1.
const TRANSITIONAL_BALLOON: u16 = 0x1002;

/// Iterates over function 0 of every possible device, because virtio devices have one function.
fn functions() -> impl Iterator<Item = DeviceFunction> {
    (0..=u8::MAX)
        .flat_map(|bus| (0..32).map(move |device| DeviceFunction { bus, device, function: 0 }))
}

fn is<C: ConfigurationAccess>(config: &C, function: DeviceFunction, kind: DeviceType) -> bool {
    let word = config.read_word(function, 0).to_le_bytes();
    let [vendor, id] = [[word[0], word[1]], [word[2], word[3]]].map(u16::from_le_bytes);
    let its_kind = match id.checked_sub(FIRST_ID) {
        Some(number) => DeviceType::try_from(number).ok(),
        None => (id == TRANSITIONAL_BALLOON).then_some(DeviceType::MemoryBalloon),
    };
    vendor == VIRTIO_VENDOR_ID && its_kind == Some(kind)
}
