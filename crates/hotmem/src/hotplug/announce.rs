//! Announces and withdraws regions: ranges in which a platform may plug memory.

use super::{Group, Hotplug};
use crate::addr::{Bytes, PfnRange};
use crate::geometry::SECTION_FRAMES;
use crate::invariant::OrRecordViolation;
use crate::mapping::Map;
use crate::origin::unique;
use crate::platform::Platform;
use crate::range_error::{RangeError, RangeErrorKind};
use crate::sync::Ordering;
use crate::words::REACHABLE_END;
use crate::words::{Announced, Neighbour, NodeId, RegionIndex, SectionPart};
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
    /// Whether [additions](crate::AddRequest::node) name the nodes of the region's parts. If so, the
    /// region may begin and end in sections of other nodes than `node`: only an addition finds out
    /// whether a section has memory of another node.
    pub nodes_vary: bool,
}

impl From<PfnRange> for Announce {
    fn from(range: PfnRange) -> Announce {
        Announce { range, node: NodeId::ZERO, group: Group::None, nodes_vary: false }
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

impl<'f, P: Platform, M: Map> Hotplug<'f, P, M> {
    /// Announces a range of any size. The memory need not exist yet. The call allocates memory only
    /// for the list of ranges, and only when the list is full: 4 KiB for the next 63 ranges.
    ///
    /// A section (128 MiB) has one node. So a range that begins or ends within a section is refused
    /// with [`RangeErrorKind::OtherNode`] if another node has memory or a region in that section,
    /// unless the [nodes of the range vary](Announce::nodes_vary). The error names the memory, or
    /// the part of the region, that the section has already.
    ///
    /// Cost: a load for each 63 ranges, and O(ranges near this range). If ranges were announced far
    /// from ascending order, or withdrawn: O(ranges).
    ///
    /// # Errors
    /// [`AnnounceError`].
    pub fn announce(&mut self, request: impl Into<Announce>) -> Result<RegionId, AnnounceError> {
        let Announce { range, node, group, nodes_vary } = request.into();
        check_region(range)?;
        if !self.mapping.mappable_range().covers(range) {
            return Err(RangeErrorKind::Unreachable.at(range).into());
        }
        self.check_neighbours(range, node, nodes_vary)?;
        let index = self.announce_new(range, node)?;
        self.clear_hole_marks(range);
        Ok(self.set_id_and_properties(index, group, nodes_vary))
    }

    /// Checks that no region overlaps `range`, and, unless its `nodes_vary`, that no other node has
    /// memory or a region in the sections that it may share: the first and the last.
    fn check_neighbours(
        &self,
        range: PfnRange,
        node: NodeId,
        nodes_vary: bool,
    ) -> Result<(), RangeError> {
        let unused = if nodes_vary { Ok(range) } else { self.unused_around(range, node) };
        match self.words().neighbour(range, unused.unwrap_or(range), node) {
            Some(Neighbour::Overlaps(region)) => Err(RangeErrorKind::Announced.at(region)),
            Some(Neighbour::OfOtherNode(part)) if unused.is_ok() => {
                Err(RangeErrorKind::OtherNode.at(part))
            }
            _ => unused.map(|_| ()),
        }
    }

    /// Returns `range` and the rest of its first and of its last section, if these sections have no
    /// memory. If they have, the node of the memory decides, because an addition may have named
    /// another node than its region has.
    fn unused_around(&self, range: PfnRange, node: NodeId) -> Result<PfnRange, RangeError> {
        let words = self.words();
        let mut unused = range.align_outward(SECTION_FRAMES as u64);
        let below = unused.split_at(range.start()).0;
        let above = unused.split_at(range.end()).1;
        for beside in [below, above] {
            let in_use = self.section_parts(beside).find_map(|SectionPart { section, .. }| {
                let blocks = section.blocks_in_use();
                (blocks != 0).then(|| (section.first_block(blocks), section.node(words)))
            });
            let Some((block, index)) = in_use else { continue };
            if words.index_of(node) != Some(index) {
                return Err(RangeErrorKind::OtherNode.at(block));
            }
            unused = match beside.start() < range.start() {
                true => unused.split_at(range.start()).1,
                false => unused.split_at(range.end()).0,
            };
        }
        Ok(unused)
    }

    /// Sets the identifier and the properties of a new region. Returns the identifier.
    pub(super) fn set_id_and_properties(
        &mut self,
        index: RegionIndex,
        group: Group,
        nodes_vary: bool,
    ) -> RegionId {
        let serial = unique();
        let region = self.words().region_at_index(index).or_record_violation();
        if let Some(Announced { entry, .. }) = region {
            entry.id.store(serial, Ordering::Relaxed);
            group.store(entry);
            entry.set_nodes_vary(nodes_vary);
        }
        let range = region.map_or(PfnRange::EMPTY, |region| region.range);
        RegionId { index, range, serial }
    }

    /// Returns the region that `id` names, if it is still announced.
    fn region(&self, id: RegionId) -> Option<Announced<'f>> {
        self.words().region_at_index(id.index).filter(|region| id_of(region) == id)
    }

    /// Withdraws an announcement. The metadata of the region stays for as long as the instance
    /// exists, and serves memory that is added at the same addresses later. It takes 12 KiB for each
    /// 8 GiB of addresses in which memory was ever added, and 4 KiB for each 64 MiB in which a
    /// pageblock was ever divided. So a platform that gives memory other addresses each time, and
    /// never the former ones again, uses up more kernel memory each time. The metadata is not freed,
    /// because a call that was interrupted may use it at any later time.
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
        announced.or_record_violation().ok_or(AnnounceError::NoMetadata(Bytes::ZERO))
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

/// Checks that `range` consists of whole pageblocks that pointers of this target can address.
pub(super) fn check_region(range: PfnRange) -> Result<(), RangeError> {
    RangeError::check_pageblocks(range)?;
    match range.end() > REACHABLE_END {
        true => Err(RangeErrorKind::Unreachable.at(range)),
        false => Ok(()),
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
