//! Implements a Bloom filter, which tells for most numbers that they are certainly not in a set.
//!
//! A walk over all CPUs must count a section once, although several CPUs may have it as their hint.
//! Only if the filter may have the section is it compared with the sections of the CPUs before.

/// A Bloom filter with one hash function: a set that may report numbers that it does not have.
#[derive(Default)]
pub(super) struct BloomFilter([u64; 32]);

impl BloomFilter {
    /// Adds a number. Returns whether it may have been there before.
    pub(super) fn insert(&mut self, number: u64) -> bool {
        let (word, bit) = place(number);
        let before = self.0[word];
        self.0[word] |= bit;
        before & bit != 0
    }

    /// Returns whether the number may be there.
    pub(super) fn may_have(&self, number: u64) -> bool {
        let (word, bit) = place(number);
        self.0[word] & bit != 0
    }
}

/// Returns the word and the bit of a number, by multiplicative hashing.
#[allow(clippy::cast_possible_truncation, reason = "11 bits")]
fn place(number: u64) -> (usize, u64) {
    let hash = number.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 53;
    ((hash / 64) as usize, 1 << (hash % 64))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_has_all_numbers_that_were_added_and_few_others() {
        let mut numbers = BloomFilter::default();
        let there = (0..256).map(|n| n * 32_768);
        let errors = there.clone().filter(|&n| numbers.insert(n)).count();
        assert!(errors < 64, "{errors}");
        assert!(there.clone().all(|n| numbers.may_have(n)));
        let others = there.map(|n| n + 8_388_608).filter(|&n| numbers.may_have(n)).count();
        assert!(others < 64, "{others}");
    }
}
