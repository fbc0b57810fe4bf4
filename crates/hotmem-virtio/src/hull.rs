//! Computes the hull of two ranges.

use hotmem::PfnRange;

/// Returns the smallest range that contains all frames of both ranges. If one range is empty, returns
/// the other.
pub(crate) fn hull(one: PfnRange, other: PfnRange) -> PfnRange {
    if one.is_empty() {
        return other;
    }
    if other.is_empty() {
        return one;
    }
    let (start, end) = (one.start().min(other.start()), one.end().max(other.end()));
    PfnRange::new(start, end).unwrap_or(one)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(start: u64, end: u64) -> PfnRange {
        PfnRange::try_from(start << 12..end << 12).unwrap()
    }

    #[test]
    fn a_hull_contains_both_ranges_and_the_frames_between_them() {
        assert_eq!(hull(range(4, 6), range(9, 12)), range(4, 12));
        assert_eq!(hull(range(9, 12), range(4, 6)), range(4, 12));
        assert_eq!(hull(range(4, 12), range(5, 6)), range(4, 12));
        assert_eq!(hull(range(4, 6), range(1, 1)), range(4, 6));
        assert_eq!(hull(PfnRange::EMPTY, range(4, 6)), range(4, 6));
    }
}
