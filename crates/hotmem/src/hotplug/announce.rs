//! Announces and withdraws regions: ranges in which a platform may plug memory.

use super::{Group, Hotplug};
use crate::addr::{Bytes, PfnRange};
use crate::frames::Frames;
use crate::geometry::is_pageblocks;
use crate::known::Known;
use crate::mapping::Mapping;
use crate::origin::unique;
use crate::platform::{Platform, REACHABLE};
use crate::sync::Ordering;
use crate::words::{Announced, NodeId, Part, RegionIndex};
use core::fmt;

/// Identifies an announced region on one machine. After the region is withdrawn, the identifier is
/// invalid for ever.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub struct RegionId {
    index: RegionIndex,
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
    /// The range is empty.
    Empty,
    /// The range is not whole pageblocks (2 MiB).
    Unaligned(PfnRange),
    /// The range ends above what pointers of this target can reach (4 GiB where they have 32 bits),
    /// or lies outside the [reach](Mapping::reach) of the kernel's mapping.
    Unreachable(PfnRange),
    /// This announced region overlaps the range.
    Overlaps(PfnRange),
    /// The list of ranges needs this much kernel memory, which is not free.
    NoMetadata(Bytes),
}

/// The reason why a region could not be withdrawn. The failed call changed nothing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WithdrawError {
    /// The region was never announced on this machine, or is withdrawn.
    Unknown,
    /// This part of the region is still present.
    Present(PfnRange),
    /// This part of the region is device memory.
    Device(PfnRange),
    /// This part of the region is being added.
    Held(PfnRange),
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
            return Err(AnnounceError::Unreachable(range));
        }
        let index = self.announce_new(range, node)?;
        self.fill_holes(range);
        Ok(self.name_region(index, group))
    }

    /// Gives a region that was just announced its identifier and its group.
    pub(super) fn name_region(&mut self, index: RegionIndex, group: Group) -> RegionId {
        let announced = unique();
        if let Some(region) = self.words().announced_as(index).known() {
            region.entry.id.store(announced, Ordering::Relaxed);
            group.store(region.entry);
        }
        RegionId { index, announced }
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
    /// [`WithdrawError`].
    pub fn withdraw(&mut self, region: RegionId) -> Result<(), WithdrawError> {
        let Announced { range, entry, .. } = self.region(region).ok_or(WithdrawError::Unknown)?;
        self.check_absent(range)?;
        entry.withdraw();
        self.words().retire(range);
        self.cursors_cleared = self.frames.clear_cursors();
        Ok(())
    }

    /// Checks that nothing of `range`, a part of a region, is present, device memory or being
    /// added.
    fn check_absent(&self, range: PfnRange) -> Result<(), WithdrawError> {
        for Part { section, blocks } in self.parts(range) {
            let present = blocks & section.present.load(Ordering::Acquire);
            if present != 0 {
                return Err(WithdrawError::Present(section.first_block(present)));
            }
            let device = blocks & section.device();
            if device != 0 {
                return Err(WithdrawError::Device(section.first_block(device)));
            }
            let held = blocks & section.isolated.load(Ordering::Acquire);
            if held != 0 {
                return Err(WithdrawError::Held(section.first_block(held)));
            }
        }
        Ok(())
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
    RegionId { index: region.index, announced }
}

/// Checks that `range` can be announced as a region.
pub(super) fn check_new<P>(frames: &Frames<P>, range: PfnRange) -> Result<(), AnnounceError> {
    if range.is_empty() {
        return Err(AnnounceError::Empty);
    }
    if !is_pageblocks(range) {
        return Err(AnnounceError::Unaligned(range));
    }
    if range.end() > REACHABLE {
        return Err(AnnounceError::Unreachable(range));
    }
    match frames.words().overlapping(range) {
        Some(other) => Err(AnnounceError::Overlaps(other)),
        None => Ok(()),
    }
}

impl fmt::Display for AnnounceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            AnnounceError::Empty => f.write_str("an empty range cannot be announced"),
            AnnounceError::Unaligned(range) => write!(f, "{range} is not whole pageblocks"),
            AnnounceError::Unreachable(range) => {
                write!(f, "{range} cannot be mapped")
            }
            AnnounceError::Overlaps(other) => write!(f, "{other} is announced already"),
            AnnounceError::NoMetadata(bytes) => write!(f, "no {bytes} free for the list of ranges"),
        }
    }
}

impl core::error::Error for AnnounceError {}

impl fmt::Display for WithdrawError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            WithdrawError::Unknown => f.write_str("no such region"),
            WithdrawError::Present(range) => write!(f, "{range} is still present"),
            WithdrawError::Device(range) => write!(f, "{range} is still device memory"),
            WithdrawError::Held(range) => write!(f, "{range} is being added"),
        }
    }
}

impl core::error::Error for WithdrawError {}
