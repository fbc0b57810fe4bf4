//! Chooses RAM that the engine is not told of at boot, so that memory can be added on a machine without a
//! device for that.

use crate::fixed_list::FixedList;
use crate::memory_map::MemoryMapEntry;
use core::fmt;
use hotmem::geometry::{FRAME_SIZE, PAGEBLOCK_FRAMES};
use hotmem::{Bytes, Pfn, PfnRange};

/// The maximal number of ranges of late memory.
pub const MAX_RANGES: usize = 8;

const BLOCK: u64 = PAGEBLOCK_FRAMES as u64 * FRAME_SIZE;

/// Ranges of late memory, from the highest to the lowest. They consist of whole pageblocks.
pub type LateRanges = FixedList<PfnRange, MAX_RANGES>;

/// The reason why memory cannot be withheld.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LateError {
    /// There is less RAM that nothing uses.
    TooLarge(Bytes),
    /// What is used divides the memory into too many ranges.
    TooManyRanges,
    /// The memory map gets too many entries.
    TooManyEntries(usize),
}

/// Chooses `size` bytes, rounded up to whole pageblocks, at the end of the RAM, without parts that are
/// used. `used` lists the first address of each used part, and the address after it.
///
/// # Errors
/// [`LateError::TooLarge`] or [`LateError::TooManyRanges`].
pub fn choose(
    map: &[MemoryMapEntry],
    used: impl Iterator<Item = (u64, u64)> + Clone,
    size: Bytes,
) -> Result<LateRanges, LateError> {
    let mut ranges = LateRanges::empty(PfnRange::EMPTY);
    // The range that grows downwards.
    let mut open: Option<(u64, u64)> = None;
    let mut missing = size.0.div_ceil(BLOCK);
    let mut below = u64::MAX;
    while missing > 0 {
        let lower =
            map.iter().filter(|entry| entry.kind == MemoryMapEntry::RAM && entry.addr < below);
        let entry = lower.max_by_key(|entry| entry.addr).ok_or(LateError::TooLarge(size))?;
        // A range lies within one entry. Where entries overlap, the higher one has the memory.
        close(&mut ranges, open.take())?;
        let end = entry.addr.saturating_add(entry.size).min(below);
        below = entry.addr;
        for start in (entry.addr.div_ceil(BLOCK)..end / BLOCK).rev().map(|block| block * BLOCK) {
            if missing == 0 {
                break;
            }
            if used.clone().any(|(first, end)| first < start + BLOCK && start < end) {
                continue;
            }
            missing -= 1;
            match &mut open {
                Some((open_start, _)) if *open_start == start + BLOCK => *open_start = start,
                _ => close(&mut ranges, open.replace((start, start + BLOCK)))?,
            }
        }
    }
    close(&mut ranges, open)?;
    Ok(ranges)
}

fn close(ranges: &mut LateRanges, open: Option<(u64, u64)>) -> Result<(), LateError> {
    let frames = |(start, end)| PfnRange::new(Pfn::containing(start)?, Pfn::containing(end)?);
    match open.map(frames) {
        None => Ok(()),
        // The memory has no frame numbers.
        Some(None) => Err(LateError::TooManyRanges),
        Some(Some(range)) => ranges.push(range).map_err(|_| LateError::TooManyRanges),
    }
}

/// Writes the memory map without the late memory to `rest`, which is empty.
///
/// # Errors
/// [`LateError::TooManyEntries`].
pub fn write_rest<const N: usize>(
    map: &[MemoryMapEntry],
    late: &LateRanges,
    rest: &mut FixedList<MemoryMapEntry, N>,
) -> Result<(), LateError> {
    for entry in map {
        let entry_end = entry.addr.saturating_add(entry.size);
        let mut push = |start: u64, end: u64| {
            let part = MemoryMapEntry { addr: start, size: end - start, ..*entry };
            if start == end && entry.size != 0 {
                return Ok(());
            }
            rest.push(part).map_err(|full| LateError::TooManyEntries(full.0))
        };
        let is_within = |range: &&PfnRange| {
            entry.kind == MemoryMapEntry::RAM
                && entry.addr <= range.start().phys_addr()
                && range.start().phys_addr() < entry_end
        };
        // The ranges descend. One that begins in this entry may end in another that overlaps it.
        let mut end = entry_end;
        for range in late.iter().filter(is_within) {
            push(range.end().phys_addr().min(end), end)?;
            end = range.start().phys_addr();
        }
        push(entry.addr, end)?;
    }
    Ok(())
}

impl fmt::Display for LateError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LateError::TooLarge(size) => write!(f, "there are no {size} of RAM that nothing uses"),
            LateError::TooManyRanges => write!(f, "the memory has more than {MAX_RANGES} ranges"),
            LateError::TooManyEntries(max) => {
                write!(f, "the memory map has more than {max} entries")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const MIB: u64 = 1 << 20;
    const RAM: MemoryMapEntry = ram(0x8000_0000, 256 * MIB);

    const fn ram(addr: u64, size: u64) -> MemoryMapEntry {
        MemoryMapEntry { addr, size, kind: MemoryMapEntry::RAM }
    }

    fn chosen(
        map: &[MemoryMapEntry],
        used: &[(u64, u64)],
        size: u64,
    ) -> Result<Vec<(u64, u64)>, LateError> {
        let ranges = choose(map, used.iter().copied(), Bytes(size))?;
        Ok(ranges
            .iter()
            .map(|range| (range.start().phys_addr(), range.end().phys_addr()))
            .collect())
    }

    fn without<const N: usize>(
        map: &[MemoryMapEntry],
        late: &LateRanges,
    ) -> Result<FixedList<MemoryMapEntry, N>, LateError> {
        let mut rest = FixedList::empty(MemoryMapEntry::EMPTY);
        write_rest(map, late, &mut rest).map(|()| rest)
    }

    fn rest(map: &[MemoryMapEntry], used: &[(u64, u64)], size: u64) -> Vec<MemoryMapEntry> {
        let late = choose(map, used.iter().copied(), Bytes(size)).unwrap();
        without::<8>(map, &late).unwrap().to_vec()
    }

    #[test]
    fn late_memory_is_the_end_of_the_ram() {
        assert_eq!(chosen(&[RAM], &[], 64 * MIB), Ok(vec![(0x8c00_0000, 0x9000_0000)]));
        assert_eq!(rest(&[RAM], &[], 64 * MIB), [ram(0x8000_0000, 192 * MIB)]);
        // Whole pageblocks, of whole pageblocks.
        let odd = ram(0x8000_1000, 8 * MIB);
        assert_eq!(chosen(&[odd], &[], 3 * MIB), Ok(vec![(0x8040_0000, 0x8080_0000)]));
        assert_eq!(rest(&[odd], &[], 1), [ram(0x8080_0000, 0x1000), ram(0x8000_1000, 0x5f_f000)]);
    }

    #[test]
    fn late_memory_avoids_what_is_used() {
        // As QEMU's machine for riscv64 puts the device tree.
        let used = [(0x8000_0000, 0x8120_0000), (0x8f00_1000, 0x8f00_2000)];
        let late = [(0x8f20_0000, 0x9000_0000), (0x8e20_0000, 0x8f00_0000)];
        assert_eq!(chosen(&[RAM], &used, 28 * MIB), Ok(late.to_vec()));
        let rest = rest(&[RAM], &used, 28 * MIB);
        assert_eq!(rest, [ram(0x8f00_0000, 2 * MIB), ram(0x8000_0000, 226 * MIB)]);
        let too_large = LateError::TooLarge(Bytes(256 * MIB));
        assert_eq!(chosen(&[RAM], &used, 256 * MIB), Err(too_large));
    }

    #[test]
    fn late_memory_may_lie_in_several_entries_and_only_in_ram() {
        let reserved = MemoryMapEntry { kind: 2, ..ram(0x9000_0000, 16 * MIB) };
        let map = [ram(0x1_0000_0000, 4 * MIB), reserved, RAM];
        let late = [(0x1_0000_0000, 0x1_0040_0000), (0x8fe0_0000, 0x9000_0000)];
        assert_eq!(chosen(&map, &[], 6 * MIB), Ok(late.to_vec()));
        assert_eq!(rest(&map, &[], 6 * MIB), [reserved, ram(0x8000_0000, 254 * MIB)]);
    }

    #[test]
    fn late_memory_in_two_adjacent_entries_is_taken_from_both() {
        // As a device tree lists the memory of two nodes.
        let map = [ram(0x8000_0000, 16 * MIB), ram(0x8100_0000, 16 * MIB)];
        let late = [(0x8100_0000, 0x8200_0000), (0x80e0_0000, 0x8100_0000)];
        assert_eq!(chosen(&map, &[], 18 * MIB), Ok(late.to_vec()));
        assert_eq!(rest(&map, &[], 18 * MIB), [ram(0x8000_0000, 14 * MIB)]);
    }

    #[test]
    fn overlapping_entries_have_late_memory_once() {
        let map = [ram(0x8000_0000, 16 * MIB), ram(0x8080_0000, 16 * MIB)];
        let late = [(0x8080_0000, 0x8180_0000), (0x8060_0000, 0x8080_0000)];
        assert_eq!(chosen(&map, &[], 18 * MIB), Ok(late.to_vec()));
        assert_eq!(rest(&map, &[], 18 * MIB), [ram(0x8000_0000, 6 * MIB)]);
    }

    #[test]
    fn memory_in_too_many_pieces_is_refused() {
        let used: Vec<_> = (0..64).map(|n| 0x8000_0000 + n * 4 * MIB).map(|a| (a, a + 1)).collect();
        assert_eq!(chosen(&[RAM], &used, 64 * MIB), Err(LateError::TooManyRanges));
        let late = choose(&[RAM], [].into_iter(), Bytes(MIB)).unwrap();
        let full = without::<0>(&[RAM], &late).map(|_| ());
        assert_eq!(full, Err(LateError::TooManyEntries(0)));
    }

    proptest! {
        #[test]
        fn every_block_is_late_or_in_the_rest_or_was_no_ram(
            used in prop::collection::vec((0u64..64, 1u64..8), 0..4),
            blocks in 1u64..40,
            cut in 0u64..2,
            gap in 0u64..2,
        ) {
            let second = (32 + 8 * gap) * BLOCK + cut * 0x1000;
            let map = [ram(cut * 0x1000, 32 * BLOCK), ram(second, 24 * BLOCK)];
            let bytes = |(at, len)| (at * BLOCK, (at + len) * BLOCK - 1);
            let used: Vec<_> = used.into_iter().map(bytes).collect();
            let Ok(late) = choose(&map, used.iter().copied(), Bytes(blocks * BLOCK)) else {
                return Ok(());
            };
            let rest = without::<32>(&map, &late).unwrap();
            prop_assert_eq!(late.iter().map(|range| range.bytes().0).sum::<u64>(), blocks * BLOCK);
            let contains = |entries: &[MemoryMapEntry], at: u64| {
                entries.iter().filter(|entry| entry.addr <= at && at - entry.addr < entry.size).count()
            };
            for at in (0..66 * BLOCK).step_by(0x8_0000) {
                let is_late = late.iter().any(|range| range.contains(Pfn::containing(at).unwrap()));
                prop_assert_eq!(contains(&rest, at) + usize::from(is_late), contains(&map, at));
                let is_used = used.iter().any(|&(first, end)| first <= at && at < end);
                prop_assert!(!is_late || !is_used);
            }
        }
    }
}
