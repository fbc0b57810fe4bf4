//! Finds the borders that no request may cross.
//!
//! Some devices keep their region in parts, and answer ERROR to a request that crosses from one part
//! to the next. The driver does not know the borders. So after an ERROR it requests a part of the
//! range: up to the address inside the range that is a multiple of the largest power of two, because
//! that is the most likely border. This halves the range roughly, so any border is found after a
//! number of requests that is logarithmic in the size of the range.

use hotmem::PfnRange;
use hotmem_invariant::OrRecordViolation;

/// The last range that the device refused by ERROR, and what follows from it for the next request.
#[derive(Clone, Copy, Debug)]
pub(super) struct RefusedRange {
    /// The refused range without the parts that the device has accepted since.
    range: PfnRange,
    /// The largest number of frames that the next request may name.
    max_frames: u64,
}

impl RefusedRange {
    pub(super) const NONE: RefusedRange =
        RefusedRange { range: PfnRange::EMPTY, max_frames: u64::MAX };

    /// Returns the largest number of frames that the next request may name, in whole units.
    ///
    /// The driver also unplugs single blocks of a unit that an earlier driver left plugged. So what
    /// is left of a refused range may end within a unit, but requests consist of whole units.
    pub(super) fn max_frames(self, unit: u64) -> u64 {
        (self.max_frames - self.max_frames % unit).max(unit)
    }

    /// Records that the device refused to plug `range`. Returns whether it may accept less.
    pub(super) fn refuse_plug(&mut self, range: PfnRange, unit: u64) -> bool {
        *self = RefusedRange { range, max_frames: lower_part(range, unit) };
        range.frames() > unit
    }

    /// Records that the device refused to unplug `range`. Returns whether it may accept less. Memory
    /// is unplugged from the top, so the next request names the part above the likely border.
    pub(super) fn refuse_unplug(&mut self, range: PfnRange, unit: u64) -> bool {
        let upper_part = range.frames().saturating_sub(lower_part(range, unit));
        *self = RefusedRange { range, max_frames: upper_part.max(unit) };
        range.frames() > unit
    }

    /// Records that the device accepted `range`. The next request may name all that is left of the
    /// refused range, and after that twice as much each time.
    pub(super) fn accept(&mut self, range: PfnRange) {
        let below = self.range.split_at(range.start()).0;
        let above = self.range.split_at(range.end()).1;
        self.range = if below.is_empty() { above } else { below };
        self.max_frames = match self.range.is_empty() {
            true => self.max_frames.max(range.frames()).saturating_mul(2),
            false => self.range.frames(),
        };
    }
}

/// Returns the number of frames of `range` below its likely border, in whole units, or a unit if
/// `range` is not larger than that. A larger range is aligned to units.
pub(super) fn lower_part(range: PfnRange, unit: u64) -> u64 {
    if range.frames() <= unit {
        return unit;
    }
    let (first, last) = (range.start().number() / unit, range.end().number() / unit - 1);
    // The highest bit in which the numbers of the first and of the last unit differ. They do differ,
    // because the range has several units.
    let bit = (first ^ last).checked_ilog2().or_record_violation().unwrap_or(0);
    ((last >> bit << bit) - first) * unit
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(start: u64, end: u64) -> PfnRange {
        PfnRange::new(hotmem::Pfn::new(start).unwrap(), hotmem::Pfn::new(end).unwrap()).unwrap()
    }

    /// Plugs the frames from 512 to 8192 and unplugs them. No request may cross `border`. Returns
    /// the numbers of errors.
    fn errors(border: u64, unit: u64) -> [u64; 2] {
        let crosses =
            |range: PfnRange| range.start().number() < border && range.end().number() > border;
        let mut errors = [0; 2];
        let (mut refused, mut next) = (RefusedRange::NONE, 512_u64);
        while next < 8192 {
            let request = range(next, next.saturating_add(refused.max_frames(unit)).min(8192));
            if crosses(request) {
                assert!(refused.refuse_plug(request, unit), "a unit does not cross the border");
                errors[0] += 1;
            } else {
                refused.accept(request);
                next = request.end().number();
            }
        }
        refused = RefusedRange::NONE;
        while next > 512 {
            let request = range(next.saturating_sub(refused.max_frames(unit)).max(512), next);
            if crosses(request) {
                assert!(refused.refuse_unplug(request, unit), "a unit does not cross the border");
                errors[1] += 1;
            } else {
                refused.accept(request);
                next = request.start().number();
            }
        }
        errors
    }

    #[test]
    fn every_border_is_found_after_a_logarithmic_number_of_errors() {
        for (unit, step) in [(1, 1), (8, 8), (64, 64)] {
            for border in (512 + unit..8192).step_by(step) {
                assert!(errors(border, unit).iter().all(|&errors| errors <= 26), "{border}");
            }
        }
    }

    #[test]
    fn likely_borders_are_found_at_once() {
        assert_eq!(errors(4096, 1), [1, 1]);
        assert_eq!(errors(2048, 8), [2, 2]);
    }

    #[test]
    fn a_unit_is_not_divided() {
        let mut refused = RefusedRange::NONE;
        assert!(!refused.refuse_plug(range(8, 16), 8));
        assert_eq!(refused.max_frames(8), 8);
        assert!(!refused.refuse_unplug(range(8, 16), 8));
        assert_eq!(refused.max_frames(8), 8);
        // Memory elsewhere says nothing about the refused range.
        refused.accept(range(16, 24));
        refused.accept(range(0, 8));
        assert_eq!(refused.max_frames(8), 8);
    }

    #[test]
    fn without_a_refusal_requests_are_not_limited() {
        let mut refused = RefusedRange::NONE;
        refused.accept(range(8, 16));
        assert_eq!(refused.max_frames(8), u64::MAX - 7);
    }

    #[test]
    fn requests_consist_of_whole_units_after_a_part_of_a_unit_was_accepted() {
        let mut refused = RefusedRange::NONE;
        assert!(refused.refuse_plug(range(16, 48), 8));
        refused.accept(range(16, 19));
        assert_eq!(refused.max_frames(8), 24);
        refused.accept(range(19, 47));
        assert_eq!(refused.max_frames(8), 8);
    }
}
