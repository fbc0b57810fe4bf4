//! The points of a check that are known to fail.

use hotmem_conformance::{BALLOON_POINTS, MEMORY_POINTS};

/// The points that are known to fail: a bit for each point of memory devices and then of balloons.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct KnownFailures(u128);

impl KnownFailures {
    /// Reads names, which commas separate. Returns `None` if no point has one of them.
    pub(super) fn parse(text: &str) -> Option<KnownFailures> {
        let mut bits = 0;
        for name in text.split(',') {
            bits |= Some(bits_of(name)).filter(|&bits| bits != 0)?;
        }
        Some(KnownFailures(bits))
    }

    /// Returns whether the point of this name is known to fail.
    #[must_use]
    pub fn has(self, name: &str) -> bool {
        self.0 & bits_of(name) != 0
    }
}

/// Returns the bits of the points of this name. Both kinds of device have those of any device.
fn bits_of(name: &str) -> u128 {
    let points = MEMORY_POINTS.iter().chain(BALLOON_POINTS);
    (0u32..)
        .zip(points)
        .filter(|(_, point)| point.name == name)
        .fold(0, |bits, (i, _)| bits | 1 << i)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_point_has_a_bit() {
        assert!(MEMORY_POINTS.len() + BALLOON_POINTS.len() <= 128);
        let known =
            KnownFailures::parse("mem/queue/batch-order,balloon/hint/stale-id-ignored").unwrap();
        let has = |point: &&hotmem_conformance::Point| known.has(point.name);
        assert_eq!(MEMORY_POINTS.iter().chain(BALLOON_POINTS).filter(has).count(), 2);
        assert!(!known.has("mem/queue"));
    }

    #[test]
    fn a_name_that_no_point_has_is_refused() {
        for text in ["", "mem/typo", "mem/queue/batch-order,", "mem/queue/batch-order mem/typo"] {
            assert_eq!(KnownFailures::parse(text), None, "{text}");
        }
    }
}
