//! A platform names a range that may hold memory one day.

use super::{Group, Hotplug};
use crate::addr::{Bytes, PfnRange};
use crate::frames::Frames;
use crate::known::Known;
use crate::mapping::Mapping;
use crate::origin::unique;
use crate::platform::{Platform, REACHABLE};
use crate::sync::Ordering;
use crate::words::{Announced, NodeId, Part, RegionIndex};
use core::fmt;

/// An announced region. It names nothing any more once the region is withdrawn, and nothing on any
/// other machine.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub struct RegionId {
    index: RegionIndex,
    /// No two announcements share it.
    announced: u64,
}

/// What a platform announces. A plain range is memory of node 0, each part for itself.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Announce {
    range: PfnRange,
    node: NodeId,
    group: Group,
}

impl Announce {
    /// Memory may come in this range.
    #[must_use]
    pub const fn range(range: PfnRange) -> Announce {
        Announce { range, node: NodeId::ZERO, group: Group::None }
    }

    /// It belongs to this node, unless an [addition](crate::AddRequest) names another.
    #[must_use]
    pub const fn on_node(self, node: NodeId) -> Announce {
        Announce { node, ..self }
    }

    /// It comes and goes like this.
    #[must_use]
    pub const fn in_group(self, group: Group) -> Announce {
        Announce { group, ..self }
    }
}

impl From<PfnRange> for Announce {
    fn from(range: PfnRange) -> Announce {
        Announce::range(range)
    }
}

/// Why a range could not be announced. Nothing has changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AnnounceError {
    /// No frames.
    Empty,
    /// Not whole pageblocks (2 MiB).
    Unaligned(PfnRange),
    /// It ends above what pointers of this target can reach, 4 GiB where they have 32 bits, or lies
    /// outside the [reach](Mapping::reach) of the kernel's mapping.
    Unreachable(PfnRange),
    /// This region has a part of it.
    Overlaps(PfnRange),
    /// There is no free kernel memory for the list of ranges.
    NoMetadata(Bytes),
}

/// Why a region could not be withdrawn. Nothing has changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WithdrawError {
    /// There is no such region on this machine, or no more.
    Unknown,
    /// This part of it is still present.
    Present(PfnRange),
    /// This part of it is device memory.
    Device(PfnRange),
    /// This part of it is being added.
    Held(PfnRange),
}

impl<'f, P: Platform, M: Mapping> Hotplug<'f, P, M> {
    /// Announces a range, however large: no memory is expected there yet, and none is taken but for
    /// the list of ranges, 4 KiB for 63 of them.
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

    /// Names a region that was announced just now.
    pub(super) fn name_region(&mut self, index: RegionIndex, group: Group) -> RegionId {
        let announced = unique();
        if let Some(region) = self.words().announced_as(index).known() {
            region.entry.id.store(announced, Ordering::Relaxed);
            group.store(region.entry);
        }
        RegionId { index, announced }
    }

    /// A region that is still announced.
    fn region(&self, id: RegionId) -> Option<Announced<'f>> {
        self.words().announced_as(id.index).filter(|region| id_of(region) == id)
    }

    /// Takes an announcement back. What words its memory had are kept for what comes there next,
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
        Ok(())
    }

    /// Whether nothing of `range`, a part of a region, is present, a device's or being added.
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

    /// All regions, boot memory first.
    pub fn regions(&self) -> impl Iterator<Item = (RegionId, PfnRange)> {
        self.words().announced().map(|region| (id_of(&region), region.range))
    }

    /// Puts `range` into the list.
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

    /// Under loom, whose atomics are no plain memory, a model keeps the words.
    #[cfg(loom)]
    fn announce_new(&mut self, _: PfnRange, _: NodeId) -> Result<RegionIndex, AnnounceError> {
        Err(AnnounceError::NoMetadata(Bytes::ZERO))
    }
}

fn id_of(region: &Announced<'_>) -> RegionId {
    let announced = region.entry.id.load(Ordering::Relaxed);
    RegionId { index: region.index, announced }
}

/// Whether a region can be announced there.
pub(super) fn check_new<P>(frames: &Frames<P>, range: PfnRange) -> Result<(), AnnounceError> {
    if range.is_empty() {
        return Err(AnnounceError::Empty);
    }
    if !range.is_pageblock_aligned() {
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
