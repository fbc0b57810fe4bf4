//! Counts the words that the zone code reads to keep and report spans.

#[cfg(feature = "probes")]
use core::sync::atomic::{AtomicU64, Ordering};

/// The number of words read. Without the feature `probes`, this type is empty and counts nothing.
#[derive(Debug, Default)]
pub(super) struct Probes {
    #[cfg(feature = "probes")]
    words: AtomicU64,
}

impl Probes {
    #[cfg(feature = "probes")]
    pub(super) fn add(&self, words: u64) {
        // Relaxed: a count, which orders nothing.
        self.words.fetch_add(words, Ordering::Relaxed);
    }

    #[cfg(feature = "probes")]
    pub(super) fn count(&self) -> u64 {
        // Relaxed: a count, which orders nothing.
        self.words.load(Ordering::Relaxed)
    }

    #[cfg(not(feature = "probes"))]
    #[allow(clippy::unused_self, reason = "with the feature it is used")]
    pub(super) fn add(&self, _: u64) {}
}
