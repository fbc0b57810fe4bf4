//! Finds named constants in the AML of a definition block, such as the DSDT, without interpreting it.
//!
//! The functions search for the bytes of one definition: `OperationRegion (HPMR, SystemIO, 0xA00, 0x18)`
//! or `Name (MDNR, 16)`. A hypervisor writes such definitions with constants, so no interpreter is
//! needed. Since the search does not know where terms begin, other terms may contain the same bytes:
//! definitions of one name with different values are refused.
//!
//! ```
//! use hotmem_acpi::aml::{AddressSpace, Region, find_integer, find_region};
//!
//! // OperationRegion (HPMR, SystemIO, 0x0A00, 0x18), Name (MDNR, 0x10)
//! let dsdt = b"\x5b\x80HPMR\x01\x0b\x00\x0a\x0a\x18\x08MDNR\x0a\x10";
//! let region = Region { space: AddressSpace::Ports, start: 0xa00, len: 0x18 };
//! assert_eq!(find_region(dsdt, b"HPMR"), Ok(Some(region)));
//! assert_eq!(find_integer(dsdt, b"MDNR"), Ok(Some(16)));
//! assert_eq!(find_region(dsdt, b"NONE"), Ok(None));
//! ```

use crate::fields::split_number;
use core::fmt;

/// A name of four characters.
pub type Name = [u8; 4];

/// A range of addresses that AML accesses (ACPI 6.5, 19.6.100).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Region {
    /// Where the addresses are.
    pub space: AddressSpace,
    /// The first address.
    pub start: u64,
    /// The number of bytes.
    pub len: u64,
}

/// The address space of a [`Region`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AddressSpace {
    /// Physical addresses.
    Memory,
    /// I/O ports.
    Ports,
    /// Another space, with its number (ACPI 6.5, 20.2.5.2).
    Other(u8),
}

/// The reason why a name has no value.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum AmlError {
    /// The definition at this offset has a value that is not a constant, or lies outside the block.
    NotConstant {
        /// The name.
        name: Name,
        /// The offset of the definition in bytes.
        at: usize,
    },
    /// The definitions at these offsets have different values.
    Ambiguous {
        /// The name.
        name: Name,
        /// The offsets of the two definitions in bytes.
        at: [usize; 2],
    },
}

/// Returns the operation region with this name, or `None` if no region has the name. Reads each byte of
/// `block` once.
///
/// # Errors
/// The region's address or length is not a constant, or two regions with this name differ.
pub fn find_region(block: &[u8], name: &Name) -> Result<Option<Region>, AmlError> {
    find(block, &[0x5b, 0x80], name, |value| {
        let (&space, value) = value.split_first()?;
        let space = match space {
            0 => AddressSpace::Memory,
            1 => AddressSpace::Ports,
            other => AddressSpace::Other(other),
        };
        let (start, value) = split_constant(value)?;
        let (len, _) = split_constant(value)?;
        Some(Region { space, start, len })
    })
}

/// Returns the integer with this name, or `None` if the name is not defined by `Name`. Reads each byte
/// of `block` once.
///
/// # Errors
/// The value is not a constant, or two definitions differ.
pub fn find_integer(block: &[u8], name: &Name) -> Result<Option<u64>, AmlError> {
    find(block, &[0x08], name, |value| Some(split_constant(value)?.0))
}

/// Returns the first interrupt of the device whose `_HID` is this string, or `None` if no device has that
/// `_HID`. It is the interrupt of the first `_CRS` after the `_HID`, a list of resources that begins with
/// an extended interrupt descriptor (ACPI 6.5, 6.4.3.6). Reads each byte of `block` at most twice.
///
/// ```
/// // Name (_HID, "ACPI0013"), Name (_CRS, ResourceTemplate () { Interrupt (, Edge, ActiveHigh) { 41 } })
/// let dsdt = b"\x08_HID\x0dACPI0013\0\x08_CRS\x11\x0e\x0a\x0b\x89\x06\0\x03\x01\x29\0\0\0\x79\0";
/// assert_eq!(hotmem_acpi::aml::find_interrupt(dsdt, b"ACPI0013"), Ok(Some(41)));
/// ```
///
/// # Errors
/// The device has no such `_CRS`, or two devices have the `_HID`.
pub fn find_interrupt(block: &[u8], hid: &[u8; 8]) -> Result<Option<u32>, AmlError> {
    let has_hid = |at: &usize| {
        let value = block[*at..].strip_prefix(b"\x08_HID\x0d");
        value.and_then(|value| value.strip_prefix(hid)).is_some_and(|rest| rest.starts_with(&[0]))
    };
    let mut devices = (0..block.len()).filter(has_hid);
    let Some(at) = devices.next() else { return Ok(None) };
    if let Some(other) = devices.next() {
        return Err(AmlError::Ambiguous { name: *b"_HID", at: [at, other] });
    }
    let resources = block[at..].windows(5).position(|name| name == b"\x08_CRS");
    let found = resources.and_then(|offset| split_interrupt(&block[at + offset + 5..]));
    found.map(Some).ok_or(AmlError::NotConstant { name: *b"_CRS", at })
}

/// Returns the first interrupt of a buffer that begins with an extended interrupt descriptor.
fn split_interrupt(buffer: &[u8]) -> Option<u32> {
    let length = buffer.strip_prefix(&[0x11])?;
    // The two high bits of a package's length say how many more bytes it has.
    let size = length.get(1 + usize::from(length.first()? >> 6)..)?;
    let (_, descriptor) = split_constant(size)?;
    // Two bytes of length and one of flags follow, then the number of interrupts, which is not 0.
    let (&[0x89, _, _, _, 1..=u8::MAX, a, b, c, d], _) = descriptor.split_first_chunk()? else {
        return None;
    };
    Some(u32::from_le_bytes([a, b, c, d]))
}

/// Returns the value that follows `opcode` and `name`. `read` decodes a value.
fn find<T: PartialEq>(
    block: &[u8],
    opcode: &[u8],
    name: &Name,
    read: impl Fn(&[u8]) -> Option<T>,
) -> Result<Option<T>, AmlError> {
    let mut found: Option<(usize, T)> = None;
    for at in 0..block.len() {
        let Some(value) = block[at..].strip_prefix(opcode).and_then(|rest| rest.strip_prefix(name))
        else {
            continue;
        };
        let value = read(value).ok_or(AmlError::NotConstant { name: *name, at })?;
        match &found {
            Some((first, other)) if *other != value => {
                return Err(AmlError::Ambiguous { name: *name, at: [*first, at] });
            }
            Some(_) => {}
            None => found = Some((at, value)),
        }
    }
    Ok(found.map(|(_, value)| value))
}

/// Returns an integer constant (ACPI 6.5, 20.2.3) and the bytes after it.
fn split_constant(bytes: &[u8]) -> Option<(u64, &[u8])> {
    let (&opcode, rest) = bytes.split_first()?;
    match opcode {
        0 => Some((0, rest)),
        1 => Some((1, rest)),
        0xff => Some((u64::MAX, rest)),
        0x0a => split_number(rest, 1),
        0x0b => split_number(rest, 2),
        0x0c => split_number(rest, 4),
        0x0e => split_number(rest, 8),
        _ => None,
    }
}

impl core::error::Error for AmlError {}

impl fmt::Display for AmlError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            AmlError::NotConstant { name, at } => {
                write!(f, "the value of {} at {at:#x} is not a constant", name.escape_ascii())
            }
            AmlError::Ambiguous { name, at: [first, second] } => write!(
                f,
                "the values of {} at {first:#x} and {second:#x} differ",
                name.escape_ascii()
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use proptest::prelude::*;
    use std::vec::Vec;

    fn region_of(space: u8, start: &[u8], len: &[u8]) -> Vec<u8> {
        [&[0x5b, 0x80][..], b"REGS", &[space], start, len].concat()
    }

    #[test]
    fn a_region_is_found_whatever_encoding_its_numbers_have() {
        let cases: [(&[u8], u64); 7] = [
            (&[0], 0),
            (&[1], 1),
            (&[0xff], u64::MAX),
            (&[0x0a, 0x18], 0x18),
            (&[0x0b, 0x00, 0x0a], 0xa00),
            (&[0x0c, 0, 0, 7, 9], 0x0907_0000),
            (&[0x0e, 1, 2, 3, 4, 5, 6, 7, 8], 0x0807_0605_0403_0201),
        ];
        for (start, number) in cases {
            let block = [b"before".to_vec(), region_of(0, start, &[0x0a, 0x18])].concat();
            let region = Region { space: AddressSpace::Memory, start: number, len: 0x18 };
            assert_eq!(find_region(&block, b"REGS"), Ok(Some(region)));
        }
    }

    #[test]
    fn a_value_that_is_not_a_constant_is_refused_with_its_offset() {
        let local = region_of(1, &[0x60], &[1]);
        let error = AmlError::NotConstant { name: *b"REGS", at: 2 };
        assert_eq!(find_region(&[b"xx", &local[..]].concat(), b"REGS"), Err(error));
        for cut in 6..9 {
            let block = region_of(1, &[0x0b, 0, 8], &[1])[..cut].to_vec();
            assert_eq!(
                find_region(&block, b"REGS"),
                Err(AmlError::NotConstant { name: *b"REGS", at: 0 })
            );
        }
    }

    #[test]
    fn definitions_that_differ_are_refused_and_equal_ones_are_not() {
        let one = b"\x08SLTS\x0a\x10".to_vec();
        let other = b"\x08SLTS\x0a\x20".to_vec();
        assert_eq!(find_integer(&[one.clone(), one.clone()].concat(), b"SLTS"), Ok(Some(16)));
        let error = AmlError::Ambiguous { name: *b"SLTS", at: [0, 7] };
        assert_eq!(find_integer(&[one, other].concat(), b"SLTS"), Err(error));
    }

    fn event_device(resources: &[u8]) -> Vec<u8> {
        [b"before\x08_HID\x0dACPI0013\0\x08_UID\x0dGED\0\x08_CRS", resources].concat()
    }

    #[test]
    fn the_interrupt_of_a_device_is_found() {
        let short =
            [&[0x11, 0x0e, 0x0a, 0x0b][..], &[0x89, 6, 0, 3, 1, 41, 0, 0, 0, 0x79, 0]].concat();
        // The length of the package has two bytes, and the device has two interrupts.
        let long =
            [&[0x11, 0x45, 0x01, 0x0b, 15, 0][..], &[0x89, 10, 0, 3, 2, 1, 2, 3, 4, 5]].concat();
        assert_eq!(find_interrupt(&event_device(&short), b"ACPI0013"), Ok(Some(41)));
        assert_eq!(find_interrupt(&event_device(&long), b"ACPI0013"), Ok(Some(0x0403_0201)));
        assert_eq!(find_interrupt(&event_device(&short), b"ACPI0014"), Ok(None));
    }

    #[test]
    fn a_device_without_an_interrupt_and_two_devices_are_refused() {
        let resources = [0x11, 0x0e, 0x0a, 0x0b, 0x89, 6, 0, 3, 1, 41, 0, 0, 0, 0x79, 0];
        let error = AmlError::NotConstant { name: *b"_CRS", at: 6 };
        for cut in 0..13 {
            let block = event_device(&resources[..cut]);
            assert_eq!(find_interrupt(&block, b"ACPI0013"), Err(error));
        }
        for (at, byte) in [(0, 0x12), (2, 0x60), (4, 0x88), (8, 0)] {
            let mut changed = resources;
            changed[at] = byte;
            assert_eq!(find_interrupt(&event_device(&changed), b"ACPI0013"), Err(error), "{at}");
        }
        let two = [event_device(&resources), event_device(&resources)].concat();
        let at = [6, event_device(&resources).len() + 6];
        let error = AmlError::Ambiguous { name: *b"_HID", at };
        assert_eq!(find_interrupt(&two, b"ACPI0013"), Err(error));
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_are_searched_without_a_panic(block in proptest::collection::vec(any::<u8>(), 0..64)) {
            let _ = find_region(&block, b"HPMR");
            let _ = find_integer(&block, b"MDNR");
            let _ = find_interrupt(&event_device(&block), b"ACPI0013");
        }

        #[test]
        fn a_definition_is_found_among_other_bytes(
            before in proptest::collection::vec(0x20u8..0x41, 0..32),
            after in proptest::collection::vec(0x20u8..0x41, 0..32),
            start: u32,
            len: u8,
        ) {
            let [a, b, c, d] = start.to_le_bytes();
            let block =
                [before, region_of(1, &[0x0c, a, b, c, d], &[0x0a, len]), after].concat();
            let region =
                Region { space: AddressSpace::Ports, start: start.into(), len: len.into() };
            prop_assert_eq!(find_region(&block, b"REGS"), Ok(Some(region)));
        }
    }
}
