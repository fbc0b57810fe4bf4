//! A set of bytes of a device, as sorted extents.

use super::error::CapacityError;
use crate::command::Extent;

/// At most `N` extents: not empty, sorted, and neither overlapping nor adjacent. None of them wraps.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct ExtentSet<const N: usize> {
    extents: [Extent; N],
    len: usize,
}

/// Returns the first address after an extent that does not wrap.
pub(super) fn end(extent: Extent) -> u64 {
    extent.start + extent.len
}

/// Returns the bytes that are in both extents. The result may be empty.
pub(super) fn common(one: Extent, other: Extent) -> Extent {
    let start = one.start.max(other.start);
    Extent { start, len: end(one).min(end(other)).saturating_sub(start) }
}

impl<const N: usize> ExtentSet<N> {
    pub(super) const EMPTY: Self = ExtentSet { extents: [Extent { start: 0, len: 0 }; N], len: 0 };

    pub(super) fn as_slice(&self) -> &[Extent] {
        &self.extents[..self.len]
    }

    pub(super) fn covers(&self, extent: Extent) -> bool {
        self.as_slice().iter().any(|&one| common(one, extent) == extent)
    }

    pub(super) fn overlaps(&self, extent: Extent) -> bool {
        self.as_slice().iter().any(|&one| common(one, extent).len > 0)
    }

    /// Returns the set with an extent that does not overlap it.
    pub(super) fn with(&self, extent: Extent) -> Result<Self, CapacityError> {
        let mut whole = extent;
        for &one in self.as_slice() {
            if end(one) == whole.start {
                whole = Extent { start: one.start, len: one.len + whole.len };
            } else if end(whole) == one.start {
                whole.len += one.len;
            }
        }
        let others = self.as_slice().iter().filter(|&&one| common(one, whole).len == 0);
        let (start, mut set) = (whole.start, Self::EMPTY);
        for &one in others.clone().filter(|one| one.start < start) {
            set.push(one)?;
        }
        set.push(whole)?;
        for &one in others.filter(|one| one.start > start) {
            set.push(one)?;
        }
        Ok(set)
    }

    /// Returns the set without the bytes of an extent.
    pub(super) fn without(&self, extent: Extent) -> Result<Self, CapacityError> {
        let mut set = Self::EMPTY;
        for &one in self.as_slice() {
            let gone = common(one, extent);
            if gone.len == 0 {
                set.push(one)?;
                continue;
            }
            let before = Extent { start: one.start, len: gone.start - one.start };
            let after = Extent { start: end(gone), len: end(one) - end(gone) };
            for part in [before, after].into_iter().filter(|part| part.len > 0) {
                set.push(part)?;
            }
        }
        Ok(set)
    }

    /// Appends an extent that lies after all others.
    fn push(&mut self, extent: Extent) -> Result<(), CapacityError> {
        let place = self.extents.get_mut(self.len).ok_or(CapacityError::Full { capacity: N })?;
        *place = extent;
        self.len += 1;
        Ok(())
    }
}
