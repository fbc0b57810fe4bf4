//! Boot memory that is named range by range.

use core::fmt;
use hotmem::{BootRange, Bytes};

/// Ranges of bytes that a kernel names one after another, at most `N` that do not touch, as the RAM
/// or the reserved memory of a [`BootMap`](hotmem::BootMap). Ranges that touch or overlap become
/// one.
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
/// let map = BootMap::of_ram(ram.as_slice());
/// # let _ = map;
/// # Ok::<(), hotmem_port::TooManyRanges>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct BootRanges<const N: usize> {
    /// The first `len` of these, in no order.
    ranges: [BootRange; N],
    len: usize,
}

/// This range would be one more than there is space for. Nothing has changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TooManyRanges(pub BootRange);

const EMPTY: BootRange = BootRange { start: 0, len: Bytes::ZERO };

impl<const N: usize> BootRanges<N> {
    /// No ranges yet.
    #[must_use]
    pub const fn new() -> BootRanges<N> {
        BootRanges { ranges: [EMPTY; N], len: 0 }
    }

    /// Adds a range. An empty one is ignored.
    ///
    /// # Errors
    /// [`TooManyRanges`].
    pub fn add(&mut self, range: impl Into<BootRange>) -> Result<(), TooManyRanges> {
        let given = range.into();
        if given.len == Bytes::ZERO {
            return Ok(());
        }
        // Each range that it joins leaves its place, and may bring it to another.
        let mut joined = given;
        let mut left = *self;
        while let Some(at) = left.as_slice().iter().position(|&other| touch(other, joined)) {
            joined = union(left.ranges[at], joined);
            left.len -= 1;
            left.ranges[at] = left.ranges[left.len];
        }
        *left.ranges.get_mut(left.len).ok_or(TooManyRanges(given))? = joined;
        left.len += 1;
        *self = left;
        Ok(())
    }

    /// The ranges, in no order.
    #[must_use]
    pub fn as_slice(&self) -> &[BootRange] {
        &self.ranges[..self.len]
    }

    /// Whether there are none.
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

/// One past the last byte; a range that wraps ends at the last address, and boot refuses it.
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
