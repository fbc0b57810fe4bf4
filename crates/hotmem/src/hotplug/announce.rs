//! A platform names a range that may hold memory one day, and its words are reserved.

use super::{Group, Hotplug};
use crate::addr::{Bytes, PfnRange};
use crate::frames::Frames;
use crate::mapping::Mapping;
use crate::origin::unique;
use crate::platform::{Platform, REACHABLE};
use crate::sync::Ordering;
use crate::words::{Announced, MAX_REGIONS, NodeId, Part, RegionIndex, Vacancy};
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
    /// [`MAX_REGIONS`] are announced, or were and have left words that are too small.
    TooManyRegions,
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

impl<P: Platform, M: Mapping> Hotplug<'_, P, M> {
    /// Announces a range: its words are reserved, at most 193 bytes a section (128 MiB) and
    /// 8 KiB. No memory is expected there yet.
    ///
    /// Cost: O(sections): the words are zeroed, unless a withdrawn region has left some.
    ///
    /// # Errors
    /// [`AnnounceError`].
    pub fn announce(&mut self, what: impl Into<Announce>) -> Result<RegionId, AnnounceError> {
        let Announce { range, node, group } = what.into();
        check_new(self.frames, range)?;
        if !self.mapping.reach().covers(range) {
            return Err(AnnounceError::Unreachable(range));
        }
        let index = match self.words().vacancy(range).ok_or(AnnounceError::TooManyRegions)? {
            Vacancy::Ready(index) => index,
            Vacancy::NeedsMemory(index) => {
                self.install_words(index, range)?;
                index
            }
        };
        self.groups[index.number()] = group;
        self.fill_holes(range);
        Ok(self.announce_as(index, range, node, false))
    }

    /// Announces `range` under `index`, which has words for it.
    pub(super) fn announce_as(
        &mut self,
        index: RegionIndex,
        range: PfnRange,
        node: NodeId,
        fixed: bool,
    ) -> RegionId {
        self.words().announce(index, range, node, fixed);
        self.announced[index.number()] = unique();
        self.region_id(index)
    }

    fn region_id(&self, index: RegionIndex) -> RegionId {
        RegionId { index, announced: self.announced[index.number()] }
    }

    /// A region that is still announced.
    fn region(&self, id: RegionId) -> Option<Announced> {
        self.words().announced_as(id.index).filter(|_| self.region_id(id.index) == id)
    }

    /// Takes an announcement back. Its words are kept for the next one that fits.
    ///
    /// Cost: O(sections).
    ///
    /// # Errors
    /// [`WithdrawError`].
    pub fn withdraw(&mut self, region: RegionId) -> Result<(), WithdrawError> {
        let range = self.region_range(region).ok_or(WithdrawError::Unknown)?;
        self.check_absent(range)?;
        self.words().withdraw(region.index);
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
        let Announced { range, fixed, .. } = self.region(region).ok_or(WithdrawError::Unknown)?;
        let kept = range.covers(keep) && !keep.is_empty() && keep.is_pageblock_aligned();
        if !kept || fixed {
            return Err(WithdrawError::Unknown);
        }
        for rest in [range.split_at(keep.start()).0, range.split_at(keep.end()).1] {
            self.check_absent(rest)?;
        }
        self.words().trim(region.index, keep);
        Ok(())
    }

    /// All regions, boot memory first.
    pub fn regions(&self) -> impl Iterator<Item = (RegionId, PfnRange)> {
        self.words().announced().map(|region| (self.region_id(region.index), region.range))
    }

    #[cfg(not(loom))]
    fn install_words(&self, index: RegionIndex, range: PfnRange) -> Result<(), AnnounceError> {
        use crate::frames::Want;
        use crate::words::Words;
        let bytes = Words::bytes_for(range);
        let memory = self
            .frames
            .alloc_range(Want::bytes(bytes).fixed())
            .or_else(|_| self.frames.alloc_range(Want::bytes(bytes)))
            .map_err(|_| AnnounceError::NoMetadata(bytes))?;
        let pointer = self.frames.direct_map().pointer(memory.start());
        // SAFETY: the frames were allocated just now, are mapped by the promise behind
        // `Mapping`, hold as many bytes, are aligned to 4 KiB and are never freed; `vacancy`
        // said that `index` has no words, and `&mut self` of our caller is alone.
        unsafe { self.words().install(index, range, pointer) };
        Ok(())
    }

    /// A model's region has its words from the start.
    #[cfg(loom)]
    fn install_words(&self, _: RegionIndex, _: PfnRange) -> Result<(), AnnounceError> {
        Err(AnnounceError::TooManyRegions)
    }
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
            AnnounceError::TooManyRegions => write!(f, "all {MAX_REGIONS} regions are in use"),
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
