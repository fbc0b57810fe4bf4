//! Generates random numbers that are the same in each run, and the orders of mixed traffic.

/// The orders of mixed traffic, each with the percentage of requests for 2^order frames.
pub(super) const ORDERS: [(u32, u64); 3] = [(0, 90), (3, 9), (9, 1)];

/// A xorshift generator.
#[derive(Clone, Debug)]
pub(super) struct Random(u64);

impl Random {
    /// Makes a generator with a fixed seed.
    pub(super) const fn new() -> Random {
        Random(0x9e37_79b9_7f4a_7c15)
    }

    /// Makes a generator with this seed.
    pub(super) fn with_seed(seed: u64) -> Random {
        let mut random = Random((seed + 1).wrapping_mul(Random::new().0) | 1);
        // Small seeds differ in few bits, so discard the first numbers.
        (0..64).for_each(|_| _ = random.next());
        random
    }

    /// Returns the next number.
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    /// Returns a number below `end`.
    pub(super) fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }

    /// Returns an index below `len`. If `len` is 0, returns 0.
    pub(super) fn index_below(&mut self, len: usize) -> usize {
        usize::try_from(self.below(len.max(1) as u64)).unwrap_or(0)
    }

    /// Returns a random order of mixed traffic.
    pub(super) fn order(&mut self) -> u32 {
        let mut percentile = self.below(100);
        for (order, share) in ORDERS {
            match percentile.checked_sub(share) {
                Some(remaining) => percentile = remaining,
                None => return order,
            }
        }
        0
    }

    /// Shuffles `elements`.
    pub(super) fn shuffle<T>(&mut self, elements: &mut [T]) {
        for i in (1..elements.len()).rev() {
            let j = self.index_below(i + 1);
            elements.swap(i, j);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn orders_have_their_shares() {
        assert_eq!(ORDERS.iter().map(|(_, share)| share).sum::<u64>(), 100);
        for mut random in [Random::new(), Random::with_seed(0), Random::with_seed(1)] {
            let orders: Vec<_> = (0..100_000).map(|_| random.order()).collect();
            for (order, share) in ORDERS {
                let count = orders.iter().filter(|&&drawn| drawn == order).count();
                let found = count as f64 / 1000.0;
                assert!((found / share as f64 - 1.0).abs() < 0.1, "order {order}: {found} %");
            }
        }
    }

    #[test]
    fn a_seed_gives_the_same_numbers_and_another_seed_others() {
        let numbers = |mut random: Random| (0..100).map(|_| random.below(1000)).collect::<Vec<_>>();
        assert_eq!(numbers(Random::with_seed(3)), numbers(Random::with_seed(3)));
        assert_ne!(numbers(Random::with_seed(3)), numbers(Random::with_seed(4)));
    }

    #[test]
    fn a_shuffle_changes_the_order_and_keeps_all_elements() {
        let mut numbers: Vec<_> = (0..1000).collect();
        Random::new().shuffle(&mut numbers);
        assert_ne!(numbers[..10], (0..10).collect::<Vec<_>>());
        numbers.sort_unstable();
        assert!(numbers.into_iter().eq(0..1000));
    }
}
