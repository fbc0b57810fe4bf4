//! Defines the batch: the ranges that the reporter gives to the host at one time.

use crate::addr::PfnRange;
use crate::geometry::PAGEBLOCK_FRAMES;
use crate::invariant::OrRecordViolation;
use crate::origin::InstanceId;
use crate::token::Token;
use core::fmt;
use core::ops::Deref;

/// The maximum number of ranges in a batch.
pub const MAX_BATCH: usize = if cfg!(loom) { 2 } else { 32 };

/// Pageblocks that are wholly free and that the reporter owns: the host may take their RAM until
/// the kernel gives the batch back by [`reported`](super::Reporter::reported) or
/// [`failed`](super::Reporter::failed).
///
/// A batch dereferences to its ranges. Each consists of whole pageblocks within one section. The
/// ranges do not overlap. Those of one node are in descending order.
///
/// If a batch is dropped or forgotten, its memory stays isolated and counted, and is never reused,
/// because the host may still be working on it. [`reset`](super::Reporter::reset) frees the memory.
#[must_use = "the memory of a batch stays isolated until the batch is given back"]
pub struct Batch {
    ranges: [PfnRange; MAX_BATCH],
    len: usize,
    instance: InstanceId,
    /// The generation of batches that this one belongs to. A [reset](super::Reporter::reset) ends a
    /// generation and makes its batches void.
    pub(super) generation: u32,
}

impl Batch {
    pub(super) fn new(instance: InstanceId, generation: u32) -> Batch {
        Batch { ranges: [PfnRange::EMPTY; MAX_BATCH], len: 0, instance, generation }
    }

    pub(super) fn push(&mut self, range: PfnRange) {
        if let Some(place) = self.ranges.get_mut(self.len).or_record_violation() {
            *place = range;
            self.len += 1;
        }
    }

    pub(super) fn blocks(&self) -> u64 {
        let frames: u64 = self.iter().map(|range| range.frames()).sum();
        frames / PAGEBLOCK_FRAMES as u64
    }
}

impl Deref for Batch {
    type Target = [PfnRange];

    fn deref(&self) -> &[PfnRange] {
        &self.ranges[..self.len]
    }
}

impl<'b> IntoIterator for &'b Batch {
    type Item = &'b PfnRange;
    type IntoIter = core::slice::Iter<'b, PfnRange>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

impl Token for Batch {
    fn instance(&self) -> InstanceId {
        self.instance
    }
}

impl fmt::Debug for Batch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Batch").field(&&**self).finish()
    }
}
