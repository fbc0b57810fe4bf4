//! Announces and withdraws regions: ranges in which a platform may plug memory.

use super::{Group, Hotplug};
use crate::addr::{Bytes, PfnRange};
use crate::frames::Frames;
use crate::known::Known;
use crate::mapping::Mapping;
use crate::origin::unique;
use crate::platform::{Platform, REACHABLE};
use crate::range_error::{RangeError, RangeErrorKind};
use crate::sync::Ordering;
use crate::words::{Announced, NodeId, RegionIndex};
use core::fmt;

/// Identifies an announced region on one machine. After the region is withdrawn, the identifier is
/// invalid for ever.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub struct RegionId {
    index: RegionIndex,
    range: PfnRange,
    /// A number that is unique to the announcement.
    announced: u64,
}

/// A range to announce. A plain range belongs to node 0 and to no group.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Announce {
    /// The range in which memory may be plugged.
    pub range: PfnRange,
    /// The node of the memory, unless an [addition](crate::AddRequest::node) names another.
    pub node: NodeId,
    /// How the zones of the region's parts depend on each other.
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
    /// The list of ranges needs this much kernel memory, which is not free.
    NoMetadata(Bytes),
}

impl<'f, P: Platform, M: Mapping> Hotplug<'f, P, M> {
    /// Announces a range of any size. The memory need not exist yet, and the call allocates only
    /// the list of ranges: 4 KiB for 63 of them.
    ///
    /// Cost: O(ranges).
    ///
    /// # Errors
    /// [`AnnounceError`].
    pub fn announce(&mut self, what: impl Into<Announce>) -> Result<RegionId, AnnounceError> {
        let Announce { range, node, group } = what.into();
        check_new(self.frames, range)?;
        if !self.mapping.reach().covers(range) {
            return Err(RangeErrorKind::Unreachable.at(range).into());
        }
        let index = self.announce_new(range, node)?;
        self.fill_holes(range);
        Ok(self.name_region(index, group))
    }

    /// Gives a region that was just announced its identifier and its group.
    pub(super) fn name_region(&mut self, index: RegionIndex, group: Group) -> RegionId {
        let announced = unique();
        let region = self.words().announced_as(index).known();
        if let Some(Announced { entry, .. }) = region {
            entry.id.store(announced, Ordering::Relaxed);
            group.store(entry);
        }
        let range = region.map_or(PfnRange::EMPTY, |region| region.range);
        RegionId { index, range, announced }
    }

    /// Returns the region that `id` names, if it is still announced.
    fn region(&self, id: RegionId) -> Option<Announced<'f>> {
        self.words().announced_as(id.index).filter(|region| id_of(region) == id)
    }

    /// Withdraws an announcement. The words of the region are kept for later additions there,
    /// unless the kernel [reclaims](Self::reclaim_words) them.
    ///
    /// Cost: O(sections).
    ///
    /// # Errors
    /// [`RangeError`]: the region, if it is not announced, or a part of it.
    pub fn withdraw(&mut self, region: RegionId) -> Result<(), RangeError> {
        let unknown = RangeErrorKind::NotAnnounced.at(region.range);
        let Announced { range, entry, .. } = self.region(region).ok_or(unknown)?;
        self.check_absent(range)?;
        entry.withdraw();
        self.words().retire(range);
        self.cursors_cleared = self.frames.clear_cursors();
        Ok(())
    }

    /// Checks that nothing of `range`, a part of a region, is present, device memory or being
    /// added.
    fn check_absent(&self, range: PfnRange) -> Result<(), RangeError> {
        self.check_words(range, |section| {
            [
                (section.present.load(Ordering::Acquire), RangeErrorKind::Present),
                (section.device(), RangeErrorKind::Device),
                (section.isolated.load(Ordering::Acquire), RangeErrorKind::Held),
            ]
        })
    }

    /// Returns all regions, boot memory first.
    pub fn regions(&self) -> impl Iterator<Item = (RegionId, PfnRange)> {
        self.words().announced().map(|region| (id_of(&region), region.range))
    }

    /// Adds `range` to the list.
    #[cfg(not(loom))]
    fn announce_new(
        &mut self,
        range: PfnRange,
        node: NodeId,
    ) -> Result<RegionIndex, AnnounceError> {
        let needed = self.words().missing_for_list(1);
        let announced =
            self.make_pieces(needed, |words, stash| words.announce(range, node, false, stash));
        announced.map_err(AnnounceError::NoMetadata)
    }

    /// Fails: under loom, whose atomics are not plain memory, the model makes the words.
    #[cfg(loom)]
    fn announce_new(&mut self, _: PfnRange, _: NodeId) -> Result<RegionIndex, AnnounceError> {
        Err(AnnounceError::NoMetadata(Bytes::ZERO))
    }
}

fn id_of(region: &Announced<'_>) -> RegionId {
    let announced = region.entry.id.load(Ordering::Relaxed);
    RegionId { index: region.index, range: region.range, announced }
}

/// Checks that `range` can be announced as a region.
pub(super) fn check_new<P>(frames: &Frames<P>, range: PfnRange) -> Result<(), RangeError> {
    RangeError::check_pageblocks(range)?;
    if range.end() > REACHABLE {
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
            AnnounceError::NoMetadata(bytes) => write!(f, "no {bytes} free for the list of ranges"),
        }
    }
}

impl core::error::Error for AnnounceError {}
