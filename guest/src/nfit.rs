//! Reads ACPI's NVDIMM Firmware Interface Table, which lists persistent memory.
//!
//! The whole table is checked before any of it is used: a truncated table, or one with invalid
//! ranges, yields no persistent memory.

use core::fmt;
use hotmem::{Bytes, PfnRange};

/// The maximal number of ranges of persistent memory.
pub const MAX_RANGES: usize = 16;

/// A range of persistent memory (ACPI 6.5, 5.2.25.2).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PersistentRange {
    /// The frames.
    pub range: PfnRange,
    /// The proximity domain, if it has one.
    pub domain: Option<u32>,
    /// Whether a device of the range is not armed: it may lose what is written, so the memory must
    /// only be read.
    pub is_unarmed: bool,
}

/// All ranges of persistent memory, in the order of the table.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PersistentRanges {
    ranges: [PersistentRange; MAX_RANGES],
    len: usize,
}

/// The reason why the table was refused. Offsets count from the table's first structure.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NfitError {
    /// A structure does not end within the table, or is shorter than a header.
    Truncated {
        /// The structure's offset.
        offset: usize,
        /// The length that the structure declares, or the length of the table's rest if it is too
        /// short for a header.
        length: usize,
    },
    /// The structure of a range is too short for its fields.
    TooShort {
        /// The structure's offset.
        offset: usize,
        /// The length that the structure declares.
        length: usize,
    },
    /// A range is not whole frames of physical memory.
    BadRange {
        /// The range's first address.
        base: u64,
        /// The range's size in bytes.
        len: u64,
    },
    /// Two ranges share memory.
    Overlap(PfnRange, PfnRange),
    /// A range overlaps RAM.
    OverRam(PfnRange),
    /// There are more than [`MAX_RANGES`] ranges.
    TooMany,
}

/// The type of a structure that describes a range. Its length in all revisions is at least
/// `SPA_RANGE_BYTES`.
const SPA_RANGE: u16 = 0;
const SPA_RANGE_BYTES: usize = 56;
const HEADER_BYTES: usize = 4;
const DOMAIN_VALID: u16 = 1 << 1;
/// The type of a structure that maps a part of a device to a range, and the length of its fields.
const DEVICE_MAPPING: u16 = 1;
const DEVICE_MAPPING_BYTES: usize = 48;
/// The flag of a device that is not armed (ACPI 6.5, 5.2.25.3).
const NOT_ARMED: u16 = 1 << 3;
/// The GUID of byte-addressable persistent memory: 66f0d379-b4f3-4074-ac43-0d3318b78cdb.
const PERSISTENT: [u8; 16] = [
    0x79, 0xd3, 0xf0, 0x66, 0xf3, 0xb4, 0x74, 0x40, 0xac, 0x43, 0x0d, 0x33, 0x18, 0xb7, 0x8c, 0xdb,
];

impl PersistentRanges {
    /// No persistent memory.
    pub const NONE: PersistentRanges = PersistentRanges {
        ranges: [PersistentRange { range: PfnRange::EMPTY, domain: None, is_unarmed: false };
            MAX_RANGES],
        len: 0,
    };

    /// Reads the table's structures, which begin at offset 40. `ram` is the RAM in the memory map.
    ///
    /// # Errors
    /// The first [`NfitError`] in the order of the table.
    pub fn read(
        structures: &[u8],
        ram: impl Iterator<Item = PfnRange> + Clone,
    ) -> Result<PersistentRanges, NfitError> {
        let mut found = PersistentRanges::NONE;
        let mut indices = [0; MAX_RANGES];
        for structure in (Structures { bytes: structures, offset: 0 }) {
            let Structure { kind, offset, bytes } = structure?;
            if kind == SPA_RANGE {
                let length = bytes.len();
                let fields = bytes.first_chunk().ok_or(NfitError::TooShort { offset, length })?;
                if let Some(index) = indices.get_mut(found.len) {
                    *index = u16::from_le_bytes([fields[4], fields[5]]);
                }
                found.add(fields, ram.clone())?;
            }
        }
        // A structure may refer to a later one.
        for structure in (Structures { bytes: structures, offset: 0 }) {
            let Structure { kind, bytes, .. } = structure?;
            if kind != DEVICE_MAPPING || bytes.len() < DEVICE_MAPPING_BYTES {
                continue;
            }
            let [index, flags] = [12, 44].map(|offset| u16_at(bytes, offset));
            let is_unarmed = flags.is_some_and(|flags| flags & NOT_ARMED != 0);
            let ranges = indices.iter().zip(&mut found.ranges).take(found.len);
            for (_, range) in ranges.filter(|&(&of_range, _)| Some(of_range) == index) {
                range.is_unarmed |= is_unarmed;
            }
        }
        Ok(found)
    }

    /// Returns the ranges.
    #[must_use]
    pub fn as_slice(&self) -> &[PersistentRange] {
        &self.ranges[..self.len]
    }

    fn add(
        &mut self,
        structure: &[u8; SPA_RANGE_BYTES],
        mut ram: impl Iterator<Item = PfnRange>,
    ) -> Result<(), NfitError> {
        if structure[16..32] != PERSISTENT {
            return Ok(());
        }
        let word = |offset| u64_at(structure, offset);
        let (base, len) = (word(32), word(40));
        let bad = NfitError::BadRange { base, len };
        let range = PfnRange::from_bytes(base, Bytes(len)).map_err(|_| bad)?;
        if range.is_empty() {
            return Err(bad);
        }
        if let Some(other) = self.as_slice().iter().find(|other| other.range.overlaps(range)) {
            return Err(NfitError::Overlap(other.range, range));
        }
        if ram.any(|ram| ram.overlaps(range)) {
            return Err(NfitError::OverRam(range));
        }
        let flags = u16::from_le_bytes([structure[6], structure[7]]);
        let domain =
            u32::from_le_bytes([structure[12], structure[13], structure[14], structure[15]]);
        let domain = (flags & DOMAIN_VALID != 0).then_some(domain);
        *self.ranges.get_mut(self.len).ok_or(NfitError::TooMany)? =
            PersistentRange { range, domain, is_unarmed: false };
        self.len += 1;
        Ok(())
    }
}

/// A structure of the table, and its offset.
struct Structure<'a> {
    kind: u16,
    offset: usize,
    bytes: &'a [u8],
}

/// The structures of the table. Ends after the first error.
struct Structures<'a> {
    bytes: &'a [u8],
    offset: usize,
}

impl<'a> Iterator for Structures<'a> {
    type Item = Result<Structure<'a>, NfitError>;

    fn next(&mut self) -> Option<Self::Item> {
        let offset = self.offset;
        let remaining = self.bytes.get(offset..).filter(|remaining| !remaining.is_empty())?;
        let length = u16_at(remaining, 2).map_or(remaining.len(), usize::from);
        let bytes = remaining.get(..length).filter(|_| length >= HEADER_BYTES);
        let structure = bytes.and_then(|bytes| Some((u16_at(bytes, 0)?, bytes)));
        self.offset = if structure.is_some() { offset + length } else { self.bytes.len() };
        let truncated = NfitError::Truncated { offset, length };
        let structure = structure.map(|(kind, bytes)| Structure { kind, offset, bytes });
        Some(structure.ok_or(truncated))
    }
}

fn u16_at(bytes: &[u8], offset: usize) -> Option<u16> {
    Some(u16::from_le_bytes(*bytes.get(offset..)?.first_chunk()?))
}

fn u64_at(structure: &[u8; SPA_RANGE_BYTES], offset: usize) -> u64 {
    let mut bytes = [0; 8];
    bytes.copy_from_slice(&structure[offset..offset + 8]);
    u64::from_le_bytes(bytes)
}

impl fmt::Display for NfitError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NfitError::Truncated { offset, length } => {
                write!(f, "NFIT: no structure of {length} bytes fits at {offset:#x}")
            }
            NfitError::TooShort { offset, length } => {
                write!(f, "NFIT: {length} bytes at {offset:#x} are too few for a range")
            }
            NfitError::BadRange { base, len } => {
                write!(f, "NFIT: {len:#x} bytes at {base:#x} are not whole frames")
            }
            NfitError::Overlap(one, other) => write!(f, "NFIT: {one} and {other} overlap"),
            NfitError::OverRam(range) => write!(f, "NFIT: {range} overlaps RAM"),
            NfitError::TooMany => write!(f, "NFIT: more than {MAX_RANGES} ranges"),
        }
    }
}

impl core::error::Error for NfitError {}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;

    fn spa_range(guid: [u8; 16], base: u64, len: u64) -> Vec<u8> {
        let mut raw = Vec::new();
        raw.extend(SPA_RANGE.to_le_bytes());
        raw.extend(56_u16.to_le_bytes());
        raw.extend(1_u16.to_le_bytes());
        raw.extend(DOMAIN_VALID.to_le_bytes());
        raw.extend([0; 4]);
        raw.extend(7_u32.to_le_bytes());
        raw.extend(guid);
        raw.extend(base.to_le_bytes());
        raw.extend(len.to_le_bytes());
        raw.extend(0x8008_u64.to_le_bytes());
        raw
    }

    fn persistent(base: u64, len: u64) -> Vec<u8> {
        spa_range(PERSISTENT, base, len)
    }

    /// Returns a structure of another type.
    fn other(length: u16) -> Vec<u8> {
        let mut raw = vec![1, 0];
        raw.extend(length.to_le_bytes());
        raw.resize(length.max(4).into(), 0xaa);
        raw
    }

    fn range(base: u64, len: u64) -> PfnRange {
        PfnRange::from_bytes(base, Bytes(len)).unwrap()
    }

    /// Reads a table on a machine with RAM from 0 to 3 GiB.
    fn read(table: &[Vec<u8>]) -> Result<PersistentRanges, NfitError> {
        PersistentRanges::read(&table.concat(), [range(0, 3 * GIB)].into_iter())
    }

    #[test]
    fn only_persistent_memory_is_listed() {
        let mut without_domain = persistent(8 * GIB, GIB);
        without_domain[6..8].fill(0);
        let volatile = [0xbc; 16];
        let table = [
            other(48),
            persistent(4 * GIB, 2 * GIB),
            spa_range(volatile, 0, GIB),
            other(4),
            without_domain,
        ];
        let found = read(&table).unwrap();
        let expected = [
            PersistentRange { range: range(4 * GIB, 2 * GIB), domain: Some(7), is_unarmed: false },
            PersistentRange { range: range(8 * GIB, GIB), domain: None, is_unarmed: false },
        ];
        assert_eq!(found.as_slice(), expected);
        assert_eq!(read(&[]), Ok(PersistentRanges::NONE));
    }

    #[test]
    fn a_structure_may_be_longer_than_the_known_fields() {
        let mut with_cookie = persistent(4 * GIB, GIB);
        with_cookie[2] = 64;
        with_cookie.extend([0; 8]);
        assert_eq!(read(&[with_cookie, other(48)]).unwrap().as_slice().len(), 1);
    }

    #[test]
    fn a_range_with_a_device_that_is_not_armed_is_marked() {
        let mut other_range = persistent(8 * GIB, GIB);
        other_range[4] = 2;
        let mapping = |index: u16, flags: u16| {
            let mut raw = other(48);
            raw[12..14].copy_from_slice(&index.to_le_bytes());
            raw[44..46].copy_from_slice(&flags.to_le_bytes());
            raw
        };
        let marks = |table: &[Vec<u8>]| {
            let found = read(table).unwrap();
            found.as_slice().iter().map(|range| range.is_unarmed).collect::<Vec<_>>()
        };
        let first = persistent(4 * GIB, GIB);
        let armed = [mapping(1, !NOT_ARMED), first.clone(), other_range.clone()];
        assert_eq!(marks(&armed), [false, false]);
        let before = [mapping(2, NOT_ARMED), mapping(2, 0), first.clone(), other_range.clone()];
        assert_eq!(marks(&before), [false, true]);
        let mut short = mapping(1, NOT_ARMED);
        short.truncate(47);
        short[2] = 47;
        assert_eq!(marks(&[first, other_range, short, mapping(3, NOT_ARMED)]), [false, false]);
    }

    #[test]
    fn a_truncated_structure_invalidates_the_table() {
        let good = persistent(4 * GIB, GIB);
        let mut short = good.clone();
        short[2] = 55;
        for (bad, error) in [
            (vec![0], NfitError::Truncated { offset: 56, length: 1 }),
            (vec![0, 0, 4], NfitError::Truncated { offset: 56, length: 3 }),
            (vec![1, 0, 0, 0], NfitError::Truncated { offset: 56, length: 0 }),
            (vec![1, 0, 3, 0], NfitError::Truncated { offset: 56, length: 3 }),
            (vec![1, 0, 0xff, 0xff], NfitError::Truncated { offset: 56, length: 0xffff }),
            (good[..55].to_vec(), NfitError::Truncated { offset: 56, length: 56 }),
            (short, NfitError::TooShort { offset: 56, length: 55 }),
        ] {
            assert_eq!(read(&[good.clone(), bad]), Err(error));
        }
    }

    #[test]
    fn invalid_ranges_are_refused() {
        for (base, len) in [
            (4 * GIB, 0),
            (4 * GIB + 1, GIB),
            (4 * GIB, GIB + 512),
            (!0xfff, 0x1000),
            (!0xfff, 0x2000),
            (1 << 52, GIB),
            (4 * GIB, 1 << 52),
        ] {
            assert_eq!(read(&[persistent(base, len)]), Err(NfitError::BadRange { base, len }));
        }
        let over_ram = range(3 * GIB - 0x1000, GIB);
        assert_eq!(read(&[persistent(3 * GIB - 0x1000, GIB)]), Err(NfitError::OverRam(over_ram)));
        let (one, two) = (range(4 * GIB, GIB), range(5 * GIB - 0x1000, GIB));
        assert_eq!(
            read(&[persistent(4 * GIB, GIB), persistent(5 * GIB - 0x1000, GIB)]),
            Err(NfitError::Overlap(one, two))
        );
    }

    #[test]
    fn at_most_sixteen_ranges_are_accepted() {
        let mut table: Vec<_> = (4..20).map(|n| persistent(n * GIB, GIB)).collect();
        assert_eq!(read(&table).unwrap().as_slice().len(), MAX_RANGES);
        table.push(persistent(20 * GIB, GIB));
        assert_eq!(read(&table), Err(NfitError::TooMany));
    }
}
