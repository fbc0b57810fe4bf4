//! Finds virtio devices on PCI (4.1), and drives their registers.
//!
//! The PCI transport of the virtio-drivers crate needs pointers to registers. [`PciTransport`]
//! needs [`Registers`] instead, so it also serves kernels that hide the pointers of MMIO. Kernels
//! whose code may use such pointers use [`Mmio`], an implementation of [`Registers`].

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

/// Finds the first device of this kind, and calls `map` with the physical addresses of the device's
/// registers, once for each BAR that has some. Returns `None` if no such device exists.
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
    let Some(function) = functions().find(|&function| is_kind(config, function, kind)) else {
        return Ok(None);
    };
    // Write zeros to the upper half, the status register, because writing ones clears its bits.
    let command = config.read_word(function, COMMAND) & 0xffff;
    config.write_word(function, COMMAND, command | MEMORY_SPACE | BUS_MASTER);
    let capabilities = Capabilities::read(config, function)?;
    PciTransport::new(kind, capabilities, config, function, map).map(Some)
}

/// Finds the first device of this kind as [`find`] does, by the memory-mapped configuration space
/// of PCI Express (ECAM). This is for kernels whose code may use pointers to registers. `map`
/// returns the address at which it has mapped the registers.
///
/// # Errors
/// [`PciError`].
///
/// # Safety
/// The configuration space is mapped uncached at the 256 MiB that start at `ecam`, and nothing else
/// uses it during the call. Each pointer that `map` returns satisfies the requirements of
/// [`Mmio::new`] for the whole range that was passed to `map`.
#[allow(unsafe_code)]
pub unsafe fn find_mapped(
    ecam: *mut u8,
    kind: DeviceType,
    mut map: impl FnMut(Range<u64>) -> Option<NonNull<u8>>,
) -> Result<Option<PciTransport<Mmio>>, PciError> {
    // SAFETY: the caller promises that `ecam` points to the mapped configuration space.
    let mut config = unsafe { MmioCam::new(ecam, Cam::Ecam) };
    find(&mut config, kind, |registers| {
        let len = usize::try_from(registers.end - registers.start).ok()?;
        let start = map(registers)?;
        // SAFETY: the caller promises that `start` is as `Mmio::new` requires.
        Some(unsafe { Mmio::new(start, len) })
    })
}

const COMMAND: u8 = 4;
const MEMORY_SPACE: u32 = 1 << 1;
const BUS_MASTER: u32 = 1 << 2;
/// The PCI device ID of device type 0 (4.1.2). The ID of another type is larger by the type's
/// number.
const FIRST_ID: u16 = 0x1040;
/// The PCI device ID of a transitional balloon: a balloon that also supports the interface before
/// version 1.
const TRANSITIONAL_BALLOON: u16 = 0x1002;

/// Iterates over function 0 of every possible PCI device. The other functions are not needed,
/// because a virtio device has one function.
fn functions() -> impl Iterator<Item = DeviceFunction> {
    (0..=u8::MAX)
        .flat_map(|bus| (0..32).map(move |device| DeviceFunction { bus, device, function: 0 }))
}

/// Returns whether this function is a virtio device of this kind.
fn is_kind<C: ConfigurationAccess>(config: &C, function: DeviceFunction, kind: DeviceType) -> bool {
    let word = config.read_word(function, 0).to_le_bytes();
    let [vendor, id] = [[word[0], word[1]], [word[2], word[3]]].map(u16::from_le_bytes);
    let found_kind = match id.checked_sub(FIRST_ID) {
        Some(number) => DeviceType::try_from(number).ok(),
        None => (id == TRANSITIONAL_BALLOON).then_some(DeviceType::MemoryBalloon),
    };
    vendor == VIRTIO_VENDOR_ID && found_kind == Some(kind)
}
