//! A platform names a range that may hold memory one day, and its words are reserved.

use super::nodes::too_many;
use super::{Group, Hotplug};
use crate::addr::{Bytes, PfnRange};
use crate::frames::Frames;
#[cfg(not(loom))]
use crate::geometry::FRAME_SIZE;
use crate::known::Known;
#[cfg(not(loom))]
use crate::known::holds;
use crate::mapping::Mapping;
use crate::origin::unique;
use crate::platform::{Platform, REACHABLE};
use crate::sync::Ordering;
#[cfg(not(loom))]
use crate::words::Lent;
use crate::words::{Announced, NodeId, NodeIndex, Part, RegionIndex, TooManyNodes};
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

    /// It belongs to this node.
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
    /// It shares a section (128 MiB) with this region, which is of another node.
    OtherNode(PfnRange),
    /// Its node would be one more than the [`MAX_NODES`](crate::MAX_NODES) that a machine can have.
    TooManyNodes(NodeId),
    /// There is no memory for its words.
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
    /// Announces a range: its words are reserved, 12 KiB for each 8 GiB, 4 KiB for each 128 GiB and
    /// 8 KiB for each 4 TiB that it has a part of and nobody had before, and 4 KiB for its node. No
    /// memory is expected there yet. A section (128 MiB) is of one node.
    ///
    /// Cost: O(sections): the words are zeroed, unless an earlier region has left some.
    ///
    /// # Errors
    /// [`AnnounceError`].
    pub fn announce(&mut self, what: impl Into<Announce>) -> Result<RegionId, AnnounceError> {
        let Announce { range, node, group } = what.into();
        check_new(self.frames, range)?;
        if !self.mapping.reach().covers(range) {
            return Err(AnnounceError::Unreachable(range));
        }
        if let Some(other) = self.words().of_other_node(range, node) {
            return Err(AnnounceError::OtherNode(other));
        }
        let mut nodes = self.words().naming();
        let node = nodes.name(node);
        let node = node.map_err(|TooManyNodes(node)| AnnounceError::TooManyNodes(node))?;
        let index = self.announce_new(range, node)?;
        nodes.keep();
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

    /// Takes an announcement back. Its words are kept for what is announced there next.
    ///
    /// Cost: O(sections).
    ///
    /// # Errors
    /// [`WithdrawError`].
    pub fn withdraw(&mut self, region: RegionId) -> Result<(), WithdrawError> {
        let range = self.region_range(region).ok_or(WithdrawError::Unknown)?;
        self.check_absent(range)?;
        if let Some(region) = self.region(region) {
            region.entry.withdraw();
        }
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

    /// What the region spans.
    #[must_use]
    pub fn region_range(&self, region: RegionId) -> Option<PfnRange> {
        Some(self.region(region)?.range)
    }

    /// The node that the region's memory belongs to.
    #[must_use]
    pub fn region_node(&self, region: RegionId) -> Option<NodeId> {
        Some(self.region(region)?.node)
    }

    /// Gives back a part of what was announced: of the region, only `keep` stays. For platforms
    /// that learn late where their memory belongs.
    ///
    /// Cost: O(sections) of what is given back.
    ///
    /// # Errors
    /// [`WithdrawError`], if something of the rest is present or being added.
    pub fn trim(&mut self, region: RegionId, keep: PfnRange) -> Result<(), WithdrawError> {
        let Announced { range, fixed, entry, .. } =
            self.region(region).ok_or(WithdrawError::Unknown)?;
        let kept = range.covers(keep) && !keep.is_empty() && keep.is_pageblock_aligned();
        if !kept || fixed {
            return Err(WithdrawError::Unknown);
        }
        for rest in [range.split_at(keep.start()).0, range.split_at(keep.end()).1] {
            self.check_absent(rest)?;
        }
        entry.trim(keep);
        Ok(())
    }

    /// All regions, boot memory first.
    pub fn regions(&self) -> impl Iterator<Item = (RegionId, PfnRange)> {
        self.words().announced().map(|region| (id_of(&region), region.range))
    }

    /// Announces `range`, with words in memory that is allocated for them.
    #[cfg(not(loom))]
    fn announce_new(
        &mut self,
        range: PfnRange,
        node: NodeIndex,
    ) -> Result<RegionIndex, AnnounceError> {
        let frames = self.words().frames_for(core::iter::once((range, node)));
        let mut supply = self.memory_for_words(frames).map_err(AnnounceError::NoMetadata)?;
        let announced = self.words().announce(range, node, false, &mut supply);
        // They were counted.
        holds(supply.rest().is_empty());
        announced.map_err(|_| AnnounceError::NoMetadata(Bytes(frames * FRAME_SIZE)))
    }

    /// So many frames, allocated for words; or how much could not be had.
    #[cfg(not(loom))]
    pub(super) fn memory_for_words(&self, frames: u64) -> Result<Lent, Bytes> {
        use crate::frames::Want;
        let memory = match frames {
            0 => PfnRange::EMPTY,
            _ => self
                .frames
                .alloc_range(Want::frames(frames).fixed())
                .or_else(|_| self.frames.alloc_range(Want::frames(frames)))
                .map_err(|_| Bytes(frames * FRAME_SIZE))?,
        };
        // SAFETY: the frames were allocated just now, are mapped by the promise behind `Mapping`,
        // and those that become words are never freed.
        Ok(unsafe { Lent::new(self.frames.direct_map(), memory) })
    }

    /// Under loom, whose atomics are no plain memory, a model keeps the words.
    #[cfg(loom)]
    fn announce_new(&mut self, _: PfnRange, _: NodeIndex) -> Result<RegionIndex, AnnounceError> {
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
            AnnounceError::OtherNode(other) => {
                write!(f, "it shares a section with {other}, which is of another node")
            }
            AnnounceError::TooManyNodes(node) => too_many(f, *node),
            AnnounceError::NoMetadata(bytes) => write!(f, "no {bytes} free for its words"),
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
