//! Reads the virtio MMIO devices that a VMM without ACPI names on the command line: one word
//! `virtio_mmio.device=<size>@<address>:<irq>[:<id>]` for each device. (The form is that of Linux;
//! see Linux's `virtio_mmio.c` and kernel parameters.)

use crate::cmdline::parse_size;
use core::fmt;

/// The registers and the interrupt of a device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MmioDevice {
    /// The physical address of the first register.
    pub phys_addr: u64,
    /// The size of the registers in bytes.
    pub size: u64,
    /// The number of the device's interrupt line.
    pub irq: u8,
}

/// A malformed device on the command line. Contains the word of the command line.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BadMmioDevice<'a>(pub &'a str);

const KEY: &str = "virtio_mmio.device=";

/// Returns the devices on a command line, in the order of the command line.
pub fn devices(cmdline: &[u8]) -> impl Iterator<Item = Result<MmioDevice, BadMmioDevice<'_>>> {
    let text = core::str::from_utf8(cmdline).unwrap_or("");
    text.split_ascii_whitespace()
        .filter_map(|word| word.strip_prefix(KEY).map(|device| (word, device)))
        .map(|(word, device)| MmioDevice::parse(device).ok_or(BadMmioDevice(word)))
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
    fn parse(text: &str) -> Option<Self> {
        let (size, place) = text.split_once('@')?;
        let mut place = place.split(':');
        let phys_addr = parse_number(place.next()?)?;
        let irq = place.next()?.parse().ok()?;
        // The identifier is ignored.
        let (_id, end) = (place.next(), place.next());
        let size = parse_size(size).map(|bytes| bytes.0).or_else(|| parse_number(size))?;
        let fits = size > 0 && phys_addr.checked_add(size).is_some() && end.is_none();
        fits.then_some(MmioDevice { phys_addr, size, irq })
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
        write!(f, "'{}' does not describe a device", self.0)
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
        let device = |phys_addr, size, irq| Ok(MmioDevice { phys_addr, size, irq });
        assert_eq!(
            parse(text),
            [device(0xfeb0_0e00, 512, 12), device(0xd000_0000, 4096, 5), device(4096, 512, 6)]
        );
        assert_eq!(parse("virtio_mmio.devices=1@2:3 xvirtio_mmio.device=1@2:3"), []);
        assert_eq!(devices(b"\xff virtio_mmio.device=512@0x1000:5").count(), 0);
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
            assert_eq!(parse(bad), [Err(BadMmioDevice(bad))]);
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
