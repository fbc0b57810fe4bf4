//! A mixed load: objects, pages and buffers that are allocated and freed in random order, a few of
//! which stay in use.

use super::checked_memory::CheckedMemory;
use alloc::vec::Vec;
use core::mem;

/// The load keeps the free memory divided by this number in use.
const DIVISOR: usize = 2;
/// How often, on average, each allocation is replaced by another one.
const ROUNDS: usize = 3;
/// The percentage of the allocations that stay allocated after the load has ended.
const PERCENT_KEPT: usize = 1;

/// Runs the load on a machine that has this many free frames. Adds the allocations that stay in use
/// to `remaining`, and returns the number of words that were in use at once.
pub fn run(remaining: &mut Vec<CheckedMemory>, free_frames: u64) -> usize {
    let max_words = ((free_frames << 12) as usize) / DIVISOR / size_of::<usize>();
    let mut random = Random(1);
    let mut allocations = Vec::new();
    let mut used_words = 0;
    while used_words < max_words
        && let Some(allocation) = CheckedMemory::new(random.len())
    {
        used_words += allocation.len();
        allocations.push(allocation);
    }
    for _ in 0..ROUNDS * allocations.len() {
        let number = random.below(allocations.len());
        let allocation = &mut allocations[number];
        allocation.check();
        // The old allocation is freed, or kept, after the new one was allocated.
        let Some(new) = CheckedMemory::new(allocation.len()) else { continue };
        let old = mem::replace(allocation, new);
        if random.below(100 * ROUNDS) < PERCENT_KEPT {
            remaining.push(old);
        }
    }
    used_words
}

/// The linear congruential generator of Numerical Recipes, of which the upper bits are used.
struct Random(u64);

impl Random {
    fn below(&mut self, end: usize) -> usize {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % end
    }

    /// Returns the length of an allocation in words: most are objects of up to 1 KiB, some are
    /// pages of up to 64 KiB, and a few are buffers of up to 4 MiB.
    fn len(&mut self) -> usize {
        let (min, max) = match self.below(100) {
            0 => (8 << 10, 512 << 10),
            1..10 => (512, 8 << 10),
            _ => (2, 128),
        };
        min + self.below(max - min)
    }
}
