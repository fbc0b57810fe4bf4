//! Makes a table from arbitrary bytes, and compares the ranges that the reader returns with those
//! of a naive reader.

use hotmem::{Bytes, PfnRange};
use hotmem_guest::nfit::{MAX_RANGES, NfitError, PersistentRanges};

const PERSISTENT: [u8; 16] = *b"\x79\xd3\xf0\x66\xf3\xb4\x74\x40\xac\x43\x0d\x33\x18\xb7\x8c\xdb";

/// Runs a script. If the lowest bit of the first byte is 0, the bytes from the fourth on are the
/// table. If the bit is 1, these bytes describe the structures of a mostly valid table. The second
/// byte is the start of RAM in GiB, and the third its length in units of 256 MiB.
pub(crate) fn run(script: &[u8]) {
    let Some((&[mode, start, len], rest)) = script.split_first_chunk() else { return };
    let ram = PfnRange::from_bytes(u64::from(start) << 30, Bytes(u64::from(len) << 28)).unwrap();
    let table = if mode & 1 == 0 { rest.to_vec() } else { make_table(rest) };
    let found = PersistentRanges::read(&table, [ram].into_iter());
    match (&found, read_naively(&table)) {
        // The reader stops at the first error, which may come before the truncation.
        (Err(_), None) => {}
        (Ok(found), Some(expected)) => {
            let found_ranges: Vec<_> =
                found.as_slice().iter().map(|range| (range.range, range.domain)).collect();
            assert_eq!(found_ranges, expected);
            assert!(is_valid(&found_ranges, ram), "{found_ranges:?} beside {ram}");
        }
        (Err(error), Some(_)) => assert!(!is_truncated(error), "{error}"),
        (Ok(found), None) => panic!("{found:?} in a truncated table"),
    }
}

fn is_truncated(error: &NfitError) -> bool {
    matches!(error, NfitError::Truncated { .. } | NfitError::TooShort { .. })
}

fn is_valid(ranges: &[(PfnRange, Option<u32>)], ram: PfnRange) -> bool {
    let is_apart_from_others =
        |n: usize| ranges[..n].iter().all(|(other, _)| !other.overlaps(ranges[n].0));
    let is_apart_from_ram = |n: usize| !ranges[n].0.is_empty() && !ranges[n].0.overlaps(ram);
    ranges.len() <= MAX_RANGES
        && (0..ranges.len()).all(|n| is_apart_from_others(n) && is_apart_from_ram(n))
}

/// Makes structures of persistent memory from eight bytes each, and corrupts one of them.
fn make_table(script: &[u8]) -> Vec<u8> {
    let mut table = Vec::new();
    let (steps, corruption) = script.as_chunks::<8>();
    for &[base, high, len, low, kind, flags, domain, extra] in steps {
        let start = table.len();
        let length = 56 + u16::from(extra % 16);
        table.extend(u16::from(kind % 3 == 2).to_le_bytes());
        table.extend(length.to_le_bytes());
        table.extend([1, 0, flags, 0, 0, 0, 0, 0, domain, 0, 0, 0]);
        table.extend(if kind % 3 == 0 { PERSISTENT } else { [kind; 16] });
        // Most ranges are valid: only large values of `high` and `low` make a range invalid.
        let (too_high, unaligned) = (u64::from(high / 240) << 52, u64::from(low / 240) << 10);
        table.extend((u64::from(base) << 28 | too_high).to_le_bytes());
        table.extend((u64::from(len) << 26 | unaligned).to_le_bytes());
        table.resize(start + usize::from(length), extra);
    }
    if let [offset, value, ..] = *corruption
        && let Some(byte) = table.get_mut(usize::from(offset))
    {
        *byte ^= value;
    }
    table
}

/// Reads a table naively. Returns `None` if a structure is truncated, and otherwise the valid
/// ranges of persistent memory.
fn read_naively(table: &[u8]) -> Option<Vec<(PfnRange, Option<u32>)>> {
    let mut structures = Vec::new();
    let mut rest = table;
    while let [_, _, low, high, ..] = *rest {
        let length = usize::from(low) | usize::from(high) << 8;
        if length < 4 || length > rest.len() {
            return None;
        }
        let (structure, following) = rest.split_at(length);
        structures.push(structure);
        rest = following;
    }
    let ranges = structures.iter().filter(|structure| structure[..2] == [0, 0]);
    if !rest.is_empty() || ranges.clone().any(|range| range.len() < 56) {
        return None;
    }
    let persistent = ranges.filter(|range| range[16..32] == PERSISTENT);
    let number = |bytes: &[u8]| bytes.iter().rev().fold(0, |sum, &byte| sum << 8 | u64::from(byte));
    let read = |range: &&[u8]| {
        let frames = PfnRange::from_bytes(number(&range[32..40]), Bytes(number(&range[40..48])));
        let domain = u32::try_from(number(&range[12..16])).ok().filter(|_| range[6] & 2 != 0);
        Some((frames.ok()?, domain))
    };
    Some(persistent.filter_map(read).collect())
}
