//! Brings the memory into the state in which a case is measured.

use super::access::Access;
use super::allocator::{Allocator, index};
use super::case::Case;
use super::length::Length;
use super::mixed_orders;
use super::place::LOW_SIZE;
use super::state::State;
use crate::bench::random::Random;
use anyhow::{Context, Result, ensure};
use hotmem::Bytes;
use hotmem::geometry::{FRAME_SIZE, PAGEBLOCK_FRAMES, SECTION_FRAMES};

const PAGEBLOCK: u64 = PAGEBLOCK_FRAMES as u64;
/// The number of allocations that each thread holds in bulk traffic, if there is enough memory.
pub(super) const BULK_ALLOCATIONS: u64 = 1 << 18;
/// The number of frames that all threads together hold in random traffic with all memory in use.
pub(super) const RANDOM_FRAMES: u64 = 1 << 20;
/// The number of allocations that random traffic exchanges on a near-full machine, if so many are in
/// use. It is a random sample of all memory in use.
const SAMPLE: u64 = 1 << 20;

/// Brings the memory, of which nothing is in use, into the state of the case. Returns the
/// allocations that each thread holds. `first` is the first frame of the memory.
pub(super) fn prepare<A: Allocator>(
    allocator: &A,
    first: u64,
    case: &Case,
) -> Result<Vec<Vec<u64>>> {
    let threads = usize::from(case.threads);
    let frames = case.size.0 / FRAME_SIZE;
    let mut held = vec![Vec::new(); threads];
    // Allocates all memory except `count` pageblocks, one at a random place in each `interval`
    // pageblocks. Equal distances would put their metadata into a few sets of the caches.
    let leave_free = |count: u64, interval: u64| -> Result<()> {
        let pageblocks = frames / PAGEBLOCK;
        ensure!(count <= pageblocks, "{} traffic needs {count} pageblocks", case.access);
        allocator.allocate_all(Length::HUGE_PAGE);
        let mut random = Random::new();
        let pageblocks_to_free = (0..count).map(|i| i * interval + random.below(interval));
        pageblocks_to_free
            .for_each(|nth| allocator.free(first + nth * PAGEBLOCK, Length::HUGE_PAGE));
        Ok(())
    };
    let low = LOW_SIZE.frames();
    // Allocates all memory, and frees the memory above low memory, and these frames of low memory.
    let leave_low_free = |in_low: &mut dyn Iterator<Item = u64>| {
        allocator.allocate_all(Length::FRAME);
        (low..frames).chain(in_low).for_each(|nth| allocator.free(first + nth, Length::FRAME));
    };
    match case.state {
        State::Empty | State::WithoutMovable | State::WithoutMovable64Cpus => {}
        State::Divided => {
            for length in [Length::FRAME, Length::Order(1)] {
                allocator.alloc(length).context("nothing is free")?;
            }
        }
        State::Full => {
            let count = free_pageblocks(case).unwrap_or(0);
            leave_free(count, frames / PAGEBLOCK / count)?;
        }
        State::Used90 | State::Used99 | State::Used999 => {
            let part = Length::Order(case.length.order());
            let parts = frames / part.frames();
            let free = parts * case.state.free_per_million().unwrap_or(0) / 1_000_000;
            allocator.allocate_all(part);
            let mut shuffled = shuffled(parts).map(|nth| first + nth * part.frames());
            for frame in shuffled.by_ref().take(index(free)) {
                allocator.free(frame, part);
            }
            held[0].extend(shuffled.take(index(SAMPLE)));
        }
        State::AllUsed => {
            allocator.allocate_all(Length::FRAME);
            // The engine has boot memory too.
            while allocator.alloc(Length::FRAME).is_some() {}
        }
        State::LowHalfUsed => leave_low_free(&mut shuffled(low).take(index(low / 2))),
        State::LowOneFree => leave_low_free(&mut shuffled(low).take(1)),
        State::LowUsed => leave_low_free(&mut std::iter::empty()),
        State::LowScattered => leave_low_free(&mut (0..low).step_by(2)),
        State::Neighbours => {
            let count = free_pageblocks(case).unwrap_or(0);
            leave_free(count, 1)?;
            for _ in 0..count * PAGEBLOCK {
                let frame = allocator.alloc(Length::FRAME).context("a free frame is not found")?;
                held[index(frame / PAGEBLOCK) % threads].push(frame);
            }
        }
    }
    Ok(held)
}

/// Returns the number of pageblocks that [`prepare`] leaves free, or `None` if another part of the
/// memory is free.
fn free_pageblocks(case: &Case) -> Option<u64> {
    match (case.state, case.access) {
        (State::Full, _) => Some(RANDOM_FRAMES / PAGEBLOCK),
        (State::Neighbours, Access::Bulk) => {
            Some(BULK_ALLOCATIONS / PAGEBLOCK * u64::from(case.threads))
        }
        (State::Neighbours, _) => Some(u64::from(case.threads)),
        _ => None,
    }
}

impl Case {
    /// Returns the size of the smallest machine on which the allocations of this case fit.
    pub(super) fn min_size(&self) -> Bytes {
        let pageblocks = match self.access {
            Access::Mixed => mixed_orders::frames_held().div_ceil(PAGEBLOCK) * 2,
            _ => free_pageblocks(self).unwrap_or(1),
        };
        let section = SECTION_FRAMES as u64;
        let sections = (pageblocks * PAGEBLOCK).div_ceil(section);
        // A section is on one node.
        let sections = sections.max(self.place.nodes().map_or(1, |nodes| nodes.count.into()));
        let low = if self.state.is_of_low_memory() { LOW_SIZE.0 + Bytes::gib(1).0 } else { 0 };
        Bytes((sections * section * FRAME_SIZE).max(low))
    }
}

/// Returns all numbers below `end` in a random order, without a list of them. Each step of the
/// function that shuffles the numbers below a power of two can be undone, so that no number occurs
/// twice.
fn shuffled(end: u64) -> impl Iterator<Item = u64> {
    let mask = end.next_power_of_two() - 1;
    let half = mask.count_ones().div_ceil(2);
    let shuffle = move |mut number: u64| {
        for multiplier in [0x9e37_79b9_7f4a_7c15, 0xbf58_476d_1ce4_e5b9, 0x94d0_49bb_1331_11eb] {
            number = number.wrapping_mul(multiplier) & mask;
            number ^= number >> half;
        }
        number
    };
    (0..=mask).map(shuffle).filter(move |&number| number < end)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shuffled_numbers_occur_once_each_and_in_no_order() {
        for end in [1, 2, 7, 64, 1000, 1 << 12] {
            let mut numbers: Vec<_> = shuffled(end).collect();
            let descents = numbers.windows(2).filter(|pair| pair[1] < pair[0]).count();
            let is_mixed = (numbers.len() / 3..numbers.len() * 2 / 3).contains(&descents);
            assert!(end < 64 || is_mixed, "{end}: {descents} descents");
            numbers.sort_unstable();
            assert!(numbers.into_iter().eq(0..end), "{end}");
        }
    }
}
