//! Collects boot memory range by range.

use core::fmt;
use hotmem::{BootRange, Bytes};

/// Ranges of bytes that a kernel adds one after another, as the RAM or the reserved memory of a
/// [`BootMap`](hotmem::BootMap). Ranges that touch or overlap are merged; up to `N` ranges may
/// remain.
///
/// ```
/// use hotmem::BootMap;
/// use hotmem_port::BootRanges;
///
/// let mut ram = BootRanges::<4>::new();
/// ram.add(0x10_0000..0x20_0000)?;
/// ram.add(0x40_0000..0x800_0000)?;
/// ram.add(0x20_0000..0x21_0000)?;
/// assert_eq!(ram.as_slice().len(), 2);
/// let map = BootMap::from(ram.as_slice());
/// # let _ = map;
/// # Ok::<(), hotmem_port::TooManyRanges>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct BootRanges<const N: usize> {
    /// The first `len` elements are the ranges, in no particular order.
    ranges: [BootRange; N],
    len: usize,
}

/// The error for a range that does not fit into the list. The list was not changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TooManyRanges(pub BootRange);

const EMPTY: BootRange = BootRange { start: 0, len: Bytes::ZERO };

impl<const N: usize> BootRanges<N> {
    /// Makes an empty list.
    #[must_use]
    pub const fn new() -> BootRanges<N> {
        BootRanges { ranges: [EMPTY; N], len: 0 }
    }

    /// Adds a range. Ignores an empty range.
    ///
    /// # Errors
    /// [`TooManyRanges`] if more than `N` ranges would remain.
    pub fn add(&mut self, range: impl Into<BootRange>) -> Result<(), TooManyRanges> {
        let added = range.into();
        if added.len == Bytes::ZERO {
            return Ok(());
        }
        // Move each range that touches the union from the list to the union. Search again after
        // each, because the larger union may touch further ranges.
        let mut merged = added;
        while let Some(index) = self.as_slice().iter().position(|&range| touch(range, merged))
            && let Some(&last) = self.as_slice().last()
            && let Some(touching) = self.ranges.get_mut(index)
        {
            merged = union(*touching, merged);
            *touching = last;
            self.len -= 1;
        }
        *self.ranges.get_mut(self.len).ok_or(TooManyRanges(added))? = merged;
        self.len += 1;
        Ok(())
    }

    /// Returns the parts of these ranges that lie in none of `excluded`. So a kernel that knows its
    /// RAM and its free memory gets its reserved memory.
    ///
    /// ```
    /// use hotmem_port::BootRanges;
    ///
    /// let (mut ram, mut free) = (BootRanges::<4>::new(), BootRanges::<2>::new());
    /// ram.add(0x10_0000..0x800_0000)?;
    /// free.add(0x20_0000..0x700_0000)?;
    /// let reserved = ram.without(&free)?;
    /// assert_eq!(reserved.as_slice(), [(0x10_0000..0x20_0000).into(),
    /// (0x700_0000..0x800_0000).into()]);
    /// # Ok::<(), hotmem_port::TooManyRanges>(())
    /// ```
    ///
    /// # Errors
    /// [`TooManyRanges`] if there are more than `N` parts.
    pub fn without<const M: usize>(
        &self,
        excluded: &BootRanges<M>,
    ) -> Result<BootRanges<N>, TooManyRanges> {
        let mut parts = BootRanges::new();
        for &range in self.as_slice() {
            // Each iteration adds the gap before the next range of `excluded`, and skips that range.
            let (mut start, range_end) = (range.start, end(range));
            while start < range_end {
                let next = excluded.as_slice().iter().filter(|&&next| end(next) > start);
                let next = next.min_by_key(|next| next.start);
                let gap_end = next.map_or(range_end, |next| next.start.clamp(start, range_end));
                parts.add(start..gap_end)?;
                start = next.map_or(range_end, |&next| end(next));
            }
        }
        Ok(parts)
    }

    /// Returns the ranges, in no particular order.
    #[must_use]
    pub fn as_slice(&self) -> &[BootRange] {
        self.ranges.get(..self.len).unwrap_or(&[])
    }

    /// Returns whether there are no ranges.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }
}

impl<const N: usize> Default for BootRanges<N> {
    fn default() -> Self {
        BootRanges::new()
    }
}

/// Returns the end of a range. A range that wraps ends at the last address, and `bootstrap` refuses
/// it.
fn end(range: BootRange) -> u64 {
    range.start.saturating_add(range.len.0)
}

fn touch(a: BootRange, b: BootRange) -> bool {
    a.start <= end(b) && b.start <= end(a)
}

fn union(a: BootRange, b: BootRange) -> BootRange {
    (a.start.min(b.start)..end(a).max(end(b))).into()
}

impl fmt::Display for TooManyRanges {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let BootRange { start, len } = self.0;
        write!(f, "no space for another range of boot memory: {len} from {start:#x}")
    }
}

impl core::error::Error for TooManyRanges {}
