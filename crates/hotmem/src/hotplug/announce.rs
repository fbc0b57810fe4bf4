//! Announces and withdraws regions: ranges in which a platform may plug memory.

use super::{Group, Hotplug};
use crate::addr::{Bytes, PfnRange};
use crate::frames::Frames;
use crate::invariant::OrViolation;
use crate::mapping::Mapping;
use crate::origin::unique;
use crate::platform::{Platform, REACHABLE_END};
use crate::range_error::{RangeError, RangeErrorKind};
use crate::sync::Ordering;
use crate::words::{Announced, NodeId, RegionIndex};
use core::fmt;

/// Identifies an announced region on one instance. After the region is withdrawn, the identifier is
/// invalid for ever.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub struct RegionId {
    index: RegionIndex,
    range: PfnRange,
    /// A number that no other announcement has.
    serial: u64,
}

/// A range to announce. A [`PfnRange`] converts to an announcement for node 0 without a group.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Announce {
    /// The range in which memory may be plugged.
    pub range: PfnRange,
    /// The node of the memory, unless an [addition](crate::AddRequest::node) names another.
    pub node: NodeId,
    /// The rule by which the engine chooses the zones of the region's parts (Linux: memory group).
    pub group: Group,
}

impl From<PfnRange> for Announce {
    fn from(range: PfnRange) -> Announce {
        Announce { range, node: NodeId::ZERO, group: Group::None }
    }
}

/// The reason why a range could not be announced. The failed call changed nothing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AnnounceError {
    /// The range was refused.
    Range(RangeError),
    /// The list of ranges needs this much kernel memory, and less is free.
    NoMetadata(Bytes),
}

impl<'f, P: Platform, M: Mapping> Hotplug<'f, P, M> {
    /// Announces a range of any size. The memory need not exist yet. The call allocates memory only
    /// for the list of ranges, and only when the list is full: 4 KiB for the next 63 ranges.
    ///
    /// Cost: a load for each 63 ranges, and O(ranges near this range). If ranges were announced far
    /// from ascending order, or withdrawn: O(ranges).
    ///
    /// # Errors
    /// [`AnnounceError`].
    pub fn announce(&mut self, request: impl Into<Announce>) -> Result<RegionId, AnnounceError> {
        let Announce { range, node, group } = request.into();
        check_announceable(self.frames, range)?;
        if !self.mapping.mappable_range().covers(range) {
            return Err(RangeErrorKind::Unreachable.at(range).into());
        }
        let index = self.announce_new(range, node)?;
        self.clear_hole_marks(range);
        Ok(self.set_id_and_group(index, group))
    }

    /// Sets the identifier and the group of a new region. Returns the identifier.
    pub(super) fn set_id_and_group(&mut self, index: RegionIndex, group: Group) -> RegionId {
        let serial = unique();
        let region = self.words().region_at_index(index).or_violation();
        if let Some(Announced { entry, .. }) = region {
            entry.id.store(serial, Ordering::Relaxed);
            group.store(entry);
        }
        let range = region.map_or(PfnRange::EMPTY, |region| region.range);
        RegionId { index, range, serial }
    }

    /// Returns the region that `id` names, if it is still announced.
    fn region(&self, id: RegionId) -> Option<Announced<'f>> {
        self.words().region_at_index(id.index).filter(|region| id_of(region) == id)
    }

    /// Withdraws an announcement. The words of the region are kept for later additions in its
    /// range, unless the kernel [reclaims](Self::reclaim_words) them.
    ///
    /// Pageblocks of the region that were [holes](crate::Settings::holes_described) of boot memory
    /// before it was announced are holes again.
    ///
    /// Cost: O(sections).
    ///
    /// # Errors
    /// [`RangeError`], which names the whole region if it is not announced, and otherwise the part
    /// that is still present, device memory, or being added.
    pub fn withdraw(&mut self, region: RegionId) -> Result<(), RangeError> {
        let unknown = RangeErrorKind::NotAnnounced.at(region.range);
        let Announced { range, index, .. } = self.region(region).ok_or(unknown)?;
        self.check_absent(range)?;
        self.words().withdraw(index);
        self.set_hole_marks(range);
        self.words().retire(range);
        self.cursors_cleared = self.frames.clear_cursors();
        Ok(())
    }

    /// Returns all regions, boot memory first.
    pub fn regions(&self) -> impl Iterator<Item = (RegionId, PfnRange)> {
        self.words().announced().map(|region| (id_of(&region), region.range))
    }

    /// Adds `range` to the list of announced ranges.
    #[cfg(not(loom))]
    fn announce_new(
        &mut self,
        range: PfnRange,
        node: NodeId,
    ) -> Result<RegionIndex, AnnounceError> {
        let needed = self.words().runs_for_list(1);
        let mut announced = None;
        let allocated = self.allocate_word_memory(needed, &mut |words, reserved_runs| {
            announced = Some(words.announce(range, node, false, reserved_runs)?);
            Ok(())
        });
        allocated.map_err(AnnounceError::NoMetadata)?;
        announced.or_violation().ok_or(AnnounceError::NoMetadata(Bytes::ZERO))
    }

    /// Always fails under loom: its atomics are not plain memory, so the loom tests make the words
    /// themselves.
    #[cfg(loom)]
    fn announce_new(&mut self, _: PfnRange, _: NodeId) -> Result<RegionIndex, AnnounceError> {
        Err(AnnounceError::NoMetadata(Bytes::ZERO))
    }
}

fn id_of(region: &Announced<'_>) -> RegionId {
    let serial = region.entry.id.load(Ordering::Relaxed);
    RegionId { index: region.index, range: region.range, serial }
}

/// Checks that `range` can be announced as a region.
pub(super) fn check_announceable<P>(frames: &Frames<P>, range: PfnRange) -> Result<(), RangeError> {
    RangeError::check_pageblocks(range)?;
    if range.end() > REACHABLE_END {
        return Err(RangeErrorKind::Unreachable.at(range));
    }
    match frames.words().overlapping(range) {
        Some(other) => Err(RangeErrorKind::Announced.at(other)),
        None => Ok(()),
    }
}

impl From<RangeError> for AnnounceError {
    fn from(error: RangeError) -> AnnounceError {
        AnnounceError::Range(error)
    }
}

impl fmt::Display for AnnounceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            AnnounceError::Range(error) => error.fmt(f),
            AnnounceError::NoMetadata(bytes) => {
                write!(f, "{bytes} of kernel memory for the list of ranges are not free")
            }
        }
    }
}

impl core::error::Error for AnnounceError {}
