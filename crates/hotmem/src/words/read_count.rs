//! Counts the words that a search reads, for the tests that bound this number.

/// The number of words that were read. Without the feature `probes`, except in tests, this type is
/// empty and counts nothing.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct ReadCount {
    #[cfg(any(test, feature = "probes"))]
    words: u64,
}

impl ReadCount {
    /// Counts this many words more.
    #[allow(unused_variables, clippy::unused_self, reason = "empty without the feature")]
    pub(crate) fn add(&mut self, words: u64) {
        #[cfg(any(test, feature = "probes"))]
        {
            self.words += words;
        }
    }

    /// Returns the number of words; 0 if this type counts nothing.
    #[allow(clippy::unused_self, reason = "empty without the feature")]
    pub(crate) fn words(self) -> u64 {
        #[cfg(any(test, feature = "probes"))]
        return self.words;
        #[cfg(not(any(test, feature = "probes")))]
        0
    }
}
