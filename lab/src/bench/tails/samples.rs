//! Measures the time of each single allocation and free.

use crate::bench::{
    frames::{Allocator, Length, alloc_until_some},
    random::Random,
};
use anyhow::Result;
use std::time::{Duration, Instant};

/// The number of frames that the measured thread holds: 256 MiB.
const HELD_FRAMES: usize = 1 << 16;
/// The number of frames that the other CPU allocates and frees in one call of [`traffic`].
const BACKGROUND_FRAMES: usize = 1 << 12;

/// The times of all calls, in nanoseconds.
pub(super) struct CallTimes {
    pub(super) alloc: Vec<u32>,
    pub(super) free: Vec<u32>,
    /// The times between two readings of the clock without a call between them.
    pub(super) clock_only: Vec<u32>,
}

/// A summary of many times, in seconds.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) struct Tail {
    pub(super) median: f64,
    pub(super) p99_9: f64,
    pub(super) longest: f64,
}

impl Tail {
    /// Summarises times in nanoseconds.
    pub(super) fn of(mut times: Vec<u32>) -> Tail {
        times.sort_unstable();
        let last = times.len().saturating_sub(1);
        let quantile = |thousandths: usize| {
            let time = times.get(last * thousandths / 1000).copied();
            Duration::from_nanos(time.unwrap_or_default().into()).as_secs_f64()
        };
        Tail { median: quantile(500), p99_9: quantile(999), longest: quantile(1000) }
    }
}

/// Frees one of the held frames and allocates a frame, `operations` times. The held frames are in a
/// random order.
pub(super) fn measure(allocator: &impl Allocator, operations: u64) -> CallTimes {
    let mut held = allocate_shuffled(allocator, HELD_FRAMES);
    // Write the arrays of times before the measurement, so that the host has allocated their memory
    // when it begins.
    let count = usize::try_from(operations).unwrap_or(usize::MAX);
    let [mut alloc, mut free, mut clock_only] = [(); 3].map(|()| vec![1; count]);
    let indices = (0..HELD_FRAMES).cycle();
    for (index, (alloc, free)) in indices.zip(alloc.iter_mut().zip(&mut free)) {
        let start = Instant::now();
        allocator.free(held[index], Length::FRAME);
        let freed = Instant::now();
        held[index] = alloc_until_some(|| allocator.alloc(Length::FRAME));
        (*free, *alloc) = (nanoseconds(start, freed), nanoseconds(freed, Instant::now()));
    }
    for time in &mut clock_only {
        *time = nanoseconds(Instant::now(), Instant::now());
    }
    held.into_iter().for_each(|frame| allocator.free(frame, Length::FRAME));
    CallTimes { alloc, free, clock_only }
}

/// Allocates frames, and frees all of them in a random order.
pub(super) fn traffic(allocator: &impl Allocator) -> Result<()> {
    allocate_shuffled(allocator, BACKGROUND_FRAMES)
        .into_iter()
        .for_each(|frame| allocator.free(frame, Length::FRAME));
    Ok(())
}

/// Allocates frames, and returns them in a random order.
fn allocate_shuffled(allocator: &impl Allocator, count: usize) -> Vec<u64> {
    let mut held: Vec<_> =
        (0..count).map(|_| alloc_until_some(|| allocator.alloc(Length::FRAME))).collect();
    Random::new().shuffle(&mut held);
    held
}

fn nanoseconds(start: Instant, end: Instant) -> u32 {
    u32::try_from(end.duration_since(start).as_nanos()).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_time_in_a_thousand_is_longer_than_p99_9() {
        let times: Vec<_> = (1..=10_001).rev().collect();
        let tail = Tail::of(times);
        assert_eq!(tail, Tail { median: 5.001e-6, p99_9: 9.991e-6, longest: 1.0001e-5 });
        assert_eq!(Tail::of(vec![7]), Tail { median: 7e-9, p99_9: 7e-9, longest: 7e-9 });
    }
}
