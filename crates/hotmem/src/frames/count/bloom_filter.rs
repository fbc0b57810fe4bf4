//! Implements a Bloom filter: a set that may report numbers that were not added, but reports every
//! number that was added.
//!
//! A walk over the hints of all CPUs must count each section once, although several CPUs may have
//! the same section as their hint. If the filter does not report the section, the section is new.
//! Otherwise, the walk compares the section with those of the earlier CPUs.

/// A Bloom filter with one hash function.
#[derive(Default)]
pub(in crate::frames) struct BloomFilter([u64; 32]);

impl BloomFilter {
    /// Returns whether the number may have been added before, and adds it.
    pub(super) fn test_and_insert(&mut self, number: u64) -> bool {
        let (word, bit) = word_and_bit(number);
        let before = self.0[word];
        self.0[word] |= bit;
        before & bit != 0
    }

    /// Returns whether the number may have been added.
    pub(super) fn may_have(&self, number: u64) -> bool {
        let (word, bit) = word_and_bit(number);
        self.0[word] & bit != 0
    }
}

/// Returns the word and the bit of a number, by multiplicative hashing.
#[allow(clippy::cast_possible_truncation, reason = "11 bits")]
fn word_and_bit(number: u64) -> (usize, u64) {
    let hash = number.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 53;
    ((hash / 64) as usize, 1 << (hash % 64))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_filter_reports_all_numbers_that_were_added_and_few_others() {
        let mut numbers = BloomFilter::default();
        let added = (0..256).map(|n| n * 32_768);
        let errors = added.clone().filter(|&n| numbers.test_and_insert(n)).count();
        assert!(errors < 64, "{errors}");
        assert!(added.clone().all(|n| numbers.may_have(n)));
        let others = added.map(|n| n + 8_388_608).filter(|&n| numbers.may_have(n)).count();
        assert!(others < 64, "{others}");
    }
}
