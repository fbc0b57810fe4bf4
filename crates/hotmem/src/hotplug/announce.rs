//! A platform names a range that may hold memory one day, and its words are reserved.

use super::{Group, Hotplug};
use crate::addr::{Bytes, PfnRange};
use crate::frames::Frames;
use crate::origin::unique;
use crate::platform::{Platform, REACHABLE};
use crate::region::{Layout, MAX_REGIONS, NodeId, Region};
use crate::sync::Ordering;
use core::fmt;

/// An announced region. It names nothing any more once the region is withdrawn, and nothing on any
/// other machine.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub struct RegionId {
    slot: usize,
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
    /// It ends above what pointers of this target can reach: 4 GiB where they have 32 bits.
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

impl<P: Platform> Hotplug<'_, P> {
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
        let slot = self.slot_for(Layout::for_range(range))?;
        self.groups[slot] = group;
        Ok(self.use_slot(slot, range, node, false))
    }

    /// Announces `range` in a slot that has words for it.
    pub(super) fn use_slot(
        &mut self,
        slot: usize,
        range: PfnRange,
        node: NodeId,
        fixed: bool,
    ) -> RegionId {
        self.frames.slots()[slot].announce(range, node, fixed);
        self.frames.use_node(node);
        self.frames.use_slot(slot);
        self.announced[slot] = unique();
        self.region_id(slot)
    }

    fn region_id(&self, slot: usize) -> RegionId {
        RegionId { slot, announced: self.announced[slot] }
    }

    /// The words of a region that is still announced.
    fn region(&self, id: RegionId) -> Option<&Region> {
        let region = self.frames.regions().get(id.slot)?;
        (self.region_id(id.slot) == id).then_some(region)
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
        self.frames.slots()[region.slot].withdraw();
        Ok(())
    }

    /// Whether nothing of `range`, a part of a region, is present, a device's or being added.
    fn check_absent(&self, range: PfnRange) -> Result<(), WithdrawError> {
        for (slot, index, blocks, section) in self.words(range) {
            let present = blocks & section.present.load(Ordering::Acquire);
            if present != 0 {
                return Err(WithdrawError::Present(self.frames.first_block(slot, index, present)));
            }
            let device = blocks & section.device();
            if device != 0 {
                return Err(WithdrawError::Device(self.frames.first_block(slot, index, device)));
            }
            let held = blocks & section.isolated.load(Ordering::Acquire);
            if held != 0 {
                return Err(WithdrawError::Held(self.frames.first_block(slot, index, held)));
            }
        }
        Ok(())
    }

    /// What the region spans.
    #[must_use]
    pub fn region_range(&self, region: RegionId) -> Option<PfnRange> {
        self.region(region)?.range()
    }

    /// The node that the region's memory belongs to.
    #[must_use]
    pub fn region_node(&self, region: RegionId) -> Option<NodeId> {
        let region = self.region(region)?;
        region.range().map(|_| region.node())
    }

    /// Gives back a part of what was announced: of the region, only `keep` stays. For platforms
    /// that learn late where their memory belongs.
    ///
    /// Cost: O(sections) of what is given back.
    ///
    /// # Errors
    /// [`WithdrawError`], if something of the rest is present or being added.
    pub fn trim(&mut self, region: RegionId, keep: PfnRange) -> Result<(), WithdrawError> {
        let range = self.region_range(region).ok_or(WithdrawError::Unknown)?;
        let kept = range.covers(keep) && !keep.is_empty() && keep.is_pageblock_aligned();
        if !kept || self.frames.slots()[region.slot].is_fixed() {
            return Err(WithdrawError::Unknown);
        }
        for rest in [range.split_at(keep.start()).0, range.split_at(keep.end()).1] {
            self.check_absent(rest)?;
        }
        self.frames.slots()[region.slot].trim(keep);
        Ok(())
    }

    /// All regions, boot memory first.
    pub fn regions(&self) -> impl Iterator<Item = (RegionId, PfnRange)> {
        let regions = self.frames.regions().iter().enumerate();
        regions.filter_map(|(slot, region)| Some((self.region_id(slot), region.range()?)))
    }

    /// A slot with words for `layout`: one that a withdrawn region has left, or a new one.
    fn slot_for(&self, layout: Layout) -> Result<usize, AnnounceError> {
        let slots = self.frames.slots();
        let unused = |slot: &usize| slots[*slot].range().is_none();
        let fitting = (0..MAX_REGIONS).filter(unused).filter(|&slot| slots[slot].holds(layout));
        if let Some(slot) = fitting.min_by_key(|&slot| slots[slot].capacity()) {
            return Ok(slot);
        }
        let slot = (0..MAX_REGIONS)
            .filter(unused)
            .find(|&slot| slots[slot].capacity() == 0)
            .ok_or(AnnounceError::TooManyRegions)?;
        self.install_words(slot, layout)?;
        Ok(slot)
    }

    #[cfg(not(loom))]
    fn install_words(&self, slot: usize, layout: Layout) -> Result<(), AnnounceError> {
        use crate::frames::Want;
        let bytes = Bytes(layout.bytes() as u64);
        let memory = self
            .frames
            .alloc(Want::bytes(bytes).fixed())
            .or_else(|_| self.frames.alloc(Want::bytes(bytes)))
            .map_err(|_| AnnounceError::NoMetadata(bytes))?;
        let pointer = self.frames.direct_map().pointer(memory.start());
        // SAFETY: the frames were allocated just now, are mapped by the promise behind
        // `DirectMap::at`, hold `layout.bytes()` bytes, are aligned to 4 KiB and are never
        // freed; the slot has no words (`capacity` is 0) and `&mut self` of our caller is alone.
        unsafe {
            pointer.write_bytes(0, layout.bytes());
            self.frames.slots()[slot].install(layout, pointer);
        }
        Ok(())
    }

    /// A model's region has its words from the start.
    #[cfg(loom)]
    fn install_words(&self, _: usize, _: Layout) -> Result<(), AnnounceError> {
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
    let mut announced = frames.regions().iter().filter_map(crate::region::Region::range);
    match announced.find(|other| other.overlaps(range)) {
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
                write!(f, "{range} ends above what {}-bit pointers reach", usize::BITS)
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
