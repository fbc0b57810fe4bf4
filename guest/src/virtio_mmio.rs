//! Reads the virtio MMIO devices that a VMM without ACPI names on the command line: one word
//! `virtio_mmio.device=<size>@<address>:<irq>[:<id>]` for each device. (The form is that of Linux;
//! see Linux's `virtio_mmio.c` and kernel parameters.) A device tree lists such devices, too.

use crate::cmdline::parse_size;
use crate::fixed_list::FixedList;
use core::fmt;

/// The registers and the interrupt of a device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MmioDevice {
    /// The physical address of the first register.
    pub phys_addr: u64,
    /// The size of the registers in bytes.
    pub size: u64,
    /// The number of the device's interrupt line, if it has one.
    pub irq: Option<u32>,
}

/// The maximal number of places for devices. QEMU's machine for aarch64 has as many.
const MAX_PLACES: usize = 32;

/// Places for devices.
pub type MmioDevices = FixedList<MmioDevice, MAX_PLACES>;

/// The reason why a device on the command line is refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BadMmioDevice<'a> {
    /// This word of the command line is malformed.
    Malformed(&'a str),
    /// There are more devices than this.
    NoRoom(usize),
}

const KEY: &str = "virtio_mmio.device=";

/// Adds the devices on a command line to those that a tree lists, each place once. A device without room
/// in the list is an error, as a malformed one is.
///
/// # Errors
/// [`BadMmioDevice`].
pub fn add_devices<'a>(
    cmdline: &'a [u8],
    listed: &mut MmioDevices,
) -> Result<(), BadMmioDevice<'a>> {
    for device in devices(cmdline) {
        let device = device?;
        if listed.iter().all(|other| other.phys_addr != device.phys_addr) {
            let added = listed.push(device);
            added.map_err(|_| BadMmioDevice::NoRoom(MAX_PLACES))?;
        }
    }
    Ok(())
}

/// Returns the devices on a command line, in the order of the command line.
pub fn devices(cmdline: &[u8]) -> impl Iterator<Item = Result<MmioDevice, BadMmioDevice<'_>>> {
    let text = core::str::from_utf8(cmdline).unwrap_or("");
    text.split_ascii_whitespace()
        .filter_map(|word| word.strip_prefix(KEY).map(|device| (word, device)))
        .map(|(word, device)| MmioDevice::parse(device).ok_or(BadMmioDevice::Malformed(word)))
}

/// Writes the command line of a kernel that is started without a reset of the machine: `next`, and the
/// words of the command line `own` that name devices, unless `next` names some itself. Returns `None` if
/// `buffer` is too small.
pub fn pass_on_devices<'b>(own: &[u8], next: &[u8], buffer: &'b mut [u8]) -> Option<&'b [u8]> {
    let words = |cmdline| <[u8]>::split(cmdline, u8::is_ascii_whitespace);
    let names_device = |word: &&[u8]| word.starts_with(KEY.as_bytes());
    let passed_on = if words(next).any(|word| names_device(&word)) { b"" } else { own };
    let mut len = 0;
    for part in [next].into_iter().chain(words(passed_on).filter(names_device)) {
        let room = buffer.get_mut(len..)?.get_mut(..part.len() + 1)?;
        room[..part.len()].copy_from_slice(part);
        room[part.len()] = b' ';
        len += room.len();
    }
    Some(&buffer[..len])
}

impl MmioDevice {
    /// Nothing, which fills the unused part of a list.
    pub const NONE: Self = MmioDevice { phys_addr: 0, size: 0, irq: None };

    fn parse(text: &str) -> Option<Self> {
        let (size, place) = text.split_once('@')?;
        let mut place = place.split(':');
        let phys_addr = parse_number(place.next()?)?;
        let irq = place.next()?.parse::<u8>().ok()?.into();
        // The identifier is ignored.
        let (_id, end) = (place.next(), place.next());
        let size = parse_size(size).map(|bytes| bytes.0).or_else(|| parse_number(size))?;
        let fits = size > 0 && phys_addr.checked_add(size).is_some() && end.is_none();
        fits.then_some(MmioDevice { phys_addr, size, irq: Some(irq) })
    }
}

/// Parses decimal digits, or `0x` and hexadecimal digits.
fn parse_number(text: &str) -> Option<u64> {
    match text.strip_prefix("0x") {
        // `from_str_radix` would accept a sign.
        Some(digits) if digits.bytes().all(|byte| byte.is_ascii_hexdigit()) => {
            u64::from_str_radix(digits, 16).ok()
        }
        Some(_) => None,
        None => parse_size(text).map(|bytes| bytes.0),
    }
}

impl fmt::Display for BadMmioDevice<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            BadMmioDevice::Malformed(word) => write!(f, "'{word}' does not describe a device"),
            BadMmioDevice::NoRoom(max) => write!(f, "more than {max} virtio devices in memory"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Vec<Result<MmioDevice, BadMmioDevice<'_>>> {
        devices(text.as_bytes()).collect()
    }

    #[test]
    fn devices_are_listed_in_the_order_of_the_command_line() {
        let text = "quiet virtio_mmio.device=512@0xfeb00e00:12 hotmem.exit=boot \
                    virtio_mmio.device=4K@0xd0000000:5:7 virtio_mmio.device=0x200@4096:6";
        let device = |phys_addr, size, irq| Ok(MmioDevice { phys_addr, size, irq: Some(irq) });
        assert_eq!(
            parse(text),
            [device(0xfeb0_0e00, 512, 12), device(0xd000_0000, 4096, 5), device(4096, 512, 6)]
        );
        assert_eq!(parse("virtio_mmio.devices=1@2:3 xvirtio_mmio.device=1@2:3"), []);
        assert_eq!(devices(b"\xff virtio_mmio.device=512@0x1000:5").count(), 0);
    }

    #[test]
    fn a_place_that_both_the_tree_and_the_command_line_name_is_listed_once() {
        let mut tree = MmioDevices::empty(MmioDevice::NONE);
        let place = |phys_addr, irq| MmioDevice { phys_addr, size: 512, irq };
        tree.push(place(0x1000, Some(40))).unwrap();
        let words = b"virtio_mmio.device=512@0x1000:5 virtio_mmio.device=512@0x2000:6";
        add_devices(words, &mut tree).unwrap();
        assert_eq!(*tree, [place(0x1000, Some(40)), place(0x2000, Some(6))]);
        let bad = add_devices(b"virtio_mmio.device=512", &mut tree).unwrap_err();
        assert_eq!(bad, BadMmioDevice::Malformed("virtio_mmio.device=512"));
        (3..=MAX_PLACES as u64).for_each(|n| tree.push(place(n << 20, None)).unwrap());
        add_devices(words, &mut tree).unwrap();
        let full = add_devices(b"virtio_mmio.device=512@0x3000:6", &mut tree);
        assert_eq!(full, Err(BadMmioDevice::NoRoom(MAX_PLACES)));
    }

    #[test]
    fn malformed_devices_are_reported() {
        for bad in [
            "virtio_mmio.device=",
            "virtio_mmio.device=512",
            "virtio_mmio.device=512@0x1000",
            "virtio_mmio.device=512@0x1000:",
            "virtio_mmio.device=512@0x1000:-1",
            "virtio_mmio.device=512@0x1000:256",
            "virtio_mmio.device=512@0x1000:5:0:1",
            "virtio_mmio.device=512@0x+1000:5",
            "virtio_mmio.device=0@0x1000:5",
            "virtio_mmio.device=512@0xffffffffffffff00:5",
            "virtio_mmio.device=512@0x10000000000000000:5",
        ] {
            assert_eq!(parse(bad), [Err(BadMmioDevice::Malformed(bad))]);
        }
    }

    #[test]
    fn the_next_kernel_gets_the_devices_of_this_kernel_unless_it_names_its_own() {
        let own = b"a virtio_mmio.device=4K@0xd0000000:5 b virtio_mmio.device=4K@0xd0001000:6";
        let buffer = &mut [0; 128];
        let added = "next virtio_mmio.device=4K@0xd0000000:5 virtio_mmio.device=4K@0xd0001000:6 ";
        assert_eq!(pass_on_devices(own, b"next", buffer), Some(added.as_bytes()));
        assert_eq!(pass_on_devices(own, b"next", &mut buffer[..added.len() - 1]), None);
        let named = b"virtio_mmio.device=4K@1M:7";
        assert_eq!(pass_on_devices(own, named, buffer), Some(&b"virtio_mmio.device=4K@1M:7 "[..]));
        assert_eq!(pass_on_devices(b"a b", b"", buffer), Some(&b" "[..]));
    }
}
