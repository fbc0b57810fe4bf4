//! Finds virtio devices on PCI (4.1), and drives their registers.
//!
//! The PCI transport of the virtio-drivers crate needs pointers to registers. [`PciTransport`]
//! needs [`Registers`] instead, so it also serves kernels that hide the pointers of MMIO. Kernels
//! whose code may use such pointers use [`Mmio`], an implementation of [`Registers`].

mod capabilities;
mod ecam;
mod error;
mod mmio;
mod msix;
mod registers;
mod transport;

pub use error::PciError;
pub use mmio::Mmio;
pub use msix::{Message, MessageError};
pub use registers::{Registers, Width};
pub use transport::PciTransport;

use capabilities::Capabilities;
use core::ops::{Range, RangeInclusive};
use core::ptr::NonNull;
use ecam::{BUS_BYTES, Ecam};
use virtio_drivers::transport::DeviceType;
use virtio_drivers::transport::pci::VIRTIO_VENDOR_ID;
use virtio_drivers::transport::pci::bus::{ConfigurationAccess, DeviceFunction};

/// Finds the first device of this kind on these buses, and calls `map` with the addresses of the
/// device's registers, once for each BAR that has some. Returns `None` if no such device exists. On
/// machines whose host bridge translates addresses, the addresses are those of the bus.
///
/// BARs must have addresses, and buses must have numbers, by the firmware or by the kernel. The
/// configuration space of other buses is not accessed.
///
/// # Errors
/// [`PciError`].
pub fn find<C: ConfigurationAccess, R: Registers>(
    config: &mut C,
    buses: RangeInclusive<u8>,
    kind: DeviceType,
    map: impl FnMut(Range<u64>) -> Option<R>,
) -> Result<Option<PciTransport<R>>, PciError> {
    let Some(function) = functions(buses).find(|&function| is_kind(config, function, kind)) else {
        return Ok(None);
    };
    // Write zeros to the upper half, the status register, because writing ones clears its bits.
    let command = config.read_word(function, COMMAND) & 0xffff;
    config.write_word(function, COMMAND, command | MEMORY_SPACE | BUS_MASTER);
    let capabilities = Capabilities::read(config, function)?;
    PciTransport::new(kind, capabilities, config, function, map).map(Some)
}

/// Finds the first device of this kind as [`find`] does, by the memory-mapped configuration space
/// of PCI Express (ECAM), which has 1 MiB for each of `buses`. This is for kernels whose code may use
/// pointers to registers. `map` returns the address at which it has mapped the registers.
///
/// # Errors
/// [`PciError`].
///
/// # Safety
/// The configuration space of the first of `buses` begins at `ecam`, and is followed by those of the
/// other buses. All are mapped uncached, and nothing else uses them during the call. `ecam` is a
/// multiple of 4. Each pointer that `map` returns satisfies the requirements of
/// [`Mmio::new`] for the whole range that was passed to `map`.
#[allow(unsafe_code)]
pub unsafe fn find_mapped(
    ecam: NonNull<u8>,
    buses: RangeInclusive<u8>,
    kind: DeviceType,
    mut map: impl FnMut(Range<u64>) -> Option<NonNull<u8>>,
) -> Result<Option<PciTransport<Mmio>>, PciError> {
    // SAFETY: the caller promises that `ecam` points to the mapped configuration space of `buses`.
    let space = unsafe { Mmio::new(ecam, buses.clone().count() * BUS_BYTES) };
    let mut config = Ecam::new(space, buses.clone());
    find(&mut config, buses, kind, |registers| {
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

/// Iterates over function 0 of every possible PCI device on these buses. The other functions are not
/// needed, because a virtio device has one function.
fn functions(buses: RangeInclusive<u8>) -> impl Iterator<Item = DeviceFunction> {
    buses.flat_map(|bus| (0..32).map(move |device| DeviceFunction { bus, device, function: 0 }))
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
