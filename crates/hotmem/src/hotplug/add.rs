//! Adds memory in two steps: prepare allocates the frames that the mapping will need, and commit maps
//! the memory.

use super::Hotplug;
use super::nodes::too_many;
use super::spare_frames::SpareFrames;
use crate::addr::{Bytes, PfnRange};
use crate::frames::{AllocError, Frames, descriptor_pageblocks};
use crate::geometry::SECTION_FRAMES;
use crate::mapping::Map;
use crate::origin::InstanceId;
use crate::platform::Platform;
use crate::range_error::{RangeError, RangeErrorKind};
use crate::sync::{Ordering, mutant};
use crate::token::Token;
use crate::words::{NodeId, NodeIndex, SectionPart, TooManyNodes, Zone};
use core::fmt;

/// A request to add memory. A [`PfnRange`] converts to a request to add it as RAM of the node that
/// its region was [announced](crate::Announce::node) for.
///
/// ```
/// # use hotmem::{AddRequest, NodeId, PfnRange};
/// # fn on_node_1(lmb: PfnRange) -> AddRequest {
/// AddRequest { node: Some(NodeId(1)), ..lmb.into() }
/// # }
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AddRequest {
    /// The range to add: whole pageblocks within one announced region.
    pub range: PfnRange,
    /// The node of the memory; `None` stands for the node that its region was announced for.
    pub node: Option<NodeId>,
    /// Whether the memory is device memory: it is mapped and left to its driver, and is not RAM.
    pub device: bool,
}

impl From<PfnRange> for AddRequest {
    fn from(range: PfnRange) -> AddRequest {
        AddRequest { range, node: None, device: false }
    }
}

/// A prepared addition: every step that can fail is done. Dropping it undoes the preparation. If it
/// is forgotten, the range stays held for ever, and the frames for its page tables stay allocated.
#[must_use = "nothing is added before it is committed"]
pub struct Addition<'f, P: Platform> {
    frames: &'f Frames<P>,
    range: PfnRange,
    /// The frames for page tables and descriptors that the mapping has not used yet.
    unused_tables: SpareFrames<'f, P>,
    is_device: bool,
    /// Whether the platform promises that the memory is zero.
    is_zero: bool,
}

/// The reason why memory could not be added. The failed call changed nothing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AddError {
    /// The range was refused.
    Range(RangeError),
    /// This node would be one more than the [`MAX_NODES`](crate::MAX_NODES) that a machine can
    /// have.
    TooManyNodes(NodeId),
    /// The words need this much memory, and neither the free kernel memory nor the word reserve is
    /// enough.
    NoMetadata(Bytes),
    /// The frames for page tables and descriptors could not be allocated: neither the free kernel
    /// memory nor the table reserve has enough.
    NoTables {
        /// The number of frames.
        frames: u64,
        /// Why the allocation failed.
        error: AllocError,
    },
}

impl<'f, P: Platform, M: Map> Hotplug<'f, P, M> {
    /// Prepares to add memory: allocates all memory that the commit will need. The memory itself
    /// need not be accessible yet.
    ///
    /// If sections of the range have no words yet, this call makes them: 12 KiB for each 8 GiB, 4
    /// KiB for each 128 GiB and 8 KiB for each 4 TiB that the range overlaps, and 4 KiB for the
    /// records of two nodes. The words stay for later additions in these sections, even if this
    /// addition is dropped.
    ///
    /// For the case that no kernel memory is free, the engine keeps a reserve of one piece of each
    /// kind of words, and [frames for page tables](Map::table_reserve). It refills the reserves
    /// after each addition, and when kernel memory comes online.
    ///
    /// Words, and the page tables of memory without descriptors, come from boot memory as long as
    /// that suffices, because it is never removed; then from other kernel memory.
    ///
    /// Cost: O(sections), and the allocation of the frames that the mapping needs.
    ///
    /// # Errors
    /// [`AddError`].
    pub fn prepare_add(
        &mut self,
        request: impl Into<AddRequest>,
    ) -> Result<Addition<'f, P>, AddError> {
        let AddRequest { range, node, device } = request.into();
        RangeError::check_pageblocks(range)?;
        let region = self.words().announced_at(range.start());
        let Some(region) = region.filter(|region| region.range.covers(range)) else {
            return Err(RangeErrorKind::NotAnnounced.at(range).into());
        };
        let mut nodes = self.words().assign_indices();
        let node = nodes.assign(node.unwrap_or(region.node));
        let node = node.map_err(|TooManyNodes(node)| AddError::TooManyNodes(node))?;
        self.check_absent(range)?;
        if !device {
            self.check_descriptor_places(range)?;
        }
        if let Some(descriptor_block) = self.descriptors_being_removed(range) {
            return Err(RangeErrorKind::Held.at(descriptor_block).into());
        }
        if let Some(other) = self.pageblock_of_other_node(range, node) {
            return Err(RangeErrorKind::OtherNode.at(other).into());
        }
        let tables = self.mapping.tables_needed(range);
        let tables = tables.map_err(|veto| RangeErrorKind::Vetoed(veto).at(range))?;
        let descriptors = if device { 0 } else { self.descriptor_frames_needed(range) };
        let frames = tables.saturating_add(descriptors);
        // A kernel may keep page tables after the memory that they map has been removed. In
        // hotplugged memory, such tables would prevent its removal. Descriptors are freed when the
        // memory that they describe is removed, so they need no boot memory.
        let spare = SpareFrames::allocate(self.frames, frames, descriptors == 0)
            .map_err(|error| AddError::NoTables { frames, error })?;
        self.make_words(range, node).map_err(AddError::NoMetadata)?;
        nodes.commit();
        self.words().set_node(range, node);
        self.frames.call().mark_held(range);
        Ok(Addition {
            frames: self.frames,
            range,
            unused_tables: spare,
            is_device: device,
            is_zero: false,
        })
    }

    /// Returns a pageblock that is present, device memory or held, in a section of `range` that
    /// belongs to another node than `node`.
    fn pageblock_of_other_node(&self, range: PfnRange, node: NodeIndex) -> Option<PfnRange> {
        let sections = self.section_parts(range.align_outward(SECTION_FRAMES as u64));
        let on_other_nodes = sections.filter(|part| part.section.node(self.words()) != node);
        on_other_nodes.map(|part| part.section).find_map(|section| {
            let in_use = section.blocks_in_use();
            (in_use != 0).then(|| section.first_block(in_use))
        })
    }

    /// Does nothing under loom: its atomics are not plain memory, so the loom tests make the words
    /// themselves.
    #[cfg(loom)]
    fn make_words(&mut self, _: PfnRange, _: NodeIndex) -> Result<(), Bytes> {
        Ok(())
    }

    /// Commits an addition: maps the memory, which must be accessible now. After that, RAM is
    /// present and offline, and the caller puts it [online](Self::online); [device
    /// memory](AddRequest::device) belongs to its driver. If another instance prepared the addition,
    /// drops it, which undoes the preparation.
    ///
    /// Cost: O(sections).
    pub fn commit_add(&mut self, addition: Addition<'f, P>) {
        if let Some(addition) = addition.of_instance(self.frames) {
            self.finish_add(addition);
        }
    }

    fn finish_add(&mut self, mut addition: Addition<'f, P>) {
        let (range, tables) = (addition.range, &mut addition.unused_tables);
        // SAFETY: `range` is being added, so it is not mapped; `tables` were allocated for it.
        unsafe { self.mapping.map(range, &mut || tables.take()) };
        self.clear_hole_marks(range);
        if addition.is_device {
            self.set_device(range, true);
        } else {
            self.describe(range, tables);
            self.set_present(range, true);
            if addition.is_zero {
                self.mark_new_as_zero(range);
            }
        }
        // A mapping may have taken frames from the reserve, and freed those that it did not need.
        drop(addition);
        #[cfg(not(loom))]
        self.frames.call().fill_reserves();
    }

    /// Marks RAM as zero that was just added, and that nobody has written to except for its
    /// descriptors.
    fn mark_new_as_zero(&self, range: PfnRange) {
        for SectionPart { section, blocks } in self.section_parts(range) {
            let blocks = blocks & !descriptor_pageblocks(section);
            section.mark_zeroed(self.frames.call().zeroed_if(section, blocks, |_| true));
        }
    }

    /// Forgets that a part of `range` is zero, which is offline.
    pub(super) fn forget_zeroed(&self, range: PfnRange) {
        mutant!("an abandoned removal keeps the mark that memory is zero" => return);
        for SectionPart { section, blocks } in self.section_parts(range) {
            section.take_zeroed(blocks);
        }
    }

    /// Makes `range` present or absent. `range` is held.
    pub(super) fn set_present(&self, range: PfnRange, present: bool) {
        let call = self.frames.call();
        for SectionPart { section, blocks } in self.section_parts(range) {
            if present {
                // Release: a reader that finds the memory present, with Acquire, finds it mapped.
                section.present.fetch_or(blocks, Ordering::Release);
            } else {
                section.present.fetch_and(!blocks, Ordering::AcqRel);
                section.forget_metadata(blocks);
                call.set_zone(section, blocks, Zone::Kernel);
                mutant!("removed memory keeps the mark that it is zero" => continue);
                section.take_zeroed(blocks);
            }
        }
    }

    /// Prepares and commits the addition of memory that is accessible already. After that, RAM is
    /// present and offline, and device memory belongs to its driver.
    ///
    /// Cost: O(sections).
    ///
    /// # Errors
    /// [`AddError`].
    pub fn add(&mut self, request: impl Into<AddRequest>) -> Result<(), AddError> {
        let addition = self.prepare_add(request)?;
        self.finish_add(addition);
        Ok(())
    }
}

#[cfg(feature = "internals")]
impl<P: Platform> Addition<'_, P> {
    /// Returns all runs of frames that were allocated for page tables and descriptors, in the order in
    /// which the mapping takes them, for tests.
    #[doc(hidden)]
    pub fn table_runs(&self) -> impl Iterator<Item = PfnRange> {
        self.unused_tables.runs()
    }
}

impl<P: Platform> Addition<'_, P> {
    /// Returns the same addition, for a platform that promises that the memory is zero when the
    /// addition is committed: the memory of a virtio-mem device of QEMU, for example, whose
    /// specification leaves the contents undefined. When the memory comes online for the first
    /// time, [it is known to be zero](Frames::keep_zero_marks), if marks are kept when the addition
    /// is committed.
    ///
    /// Only pageblocks without descriptors and without poisoned frames are known to be zero, and
    /// none of device memory.
    ///
    /// The promise includes that nobody writes to the memory before it is online, except for its
    /// descriptors: no hook that tests it, for example. A false promise breaks that of
    /// [`Frames::keep_zero_marks`].
    pub fn zeroed(self) -> Self {
        let mut addition = self;
        addition.is_zero = true;
        addition
    }
}

impl<P: Platform> Drop for Addition<'_, P> {
    fn drop(&mut self) {
        self.frames.call().clear_held(self.range);
    }
}

impl<P: Platform> Token for Addition<'_, P> {
    fn instance(&self) -> InstanceId {
        self.frames.id()
    }
}

impl<P: Platform> fmt::Debug for Addition<'_, P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Addition").field(&self.range).finish()
    }
}

impl From<RangeError> for AddError {
    fn from(error: RangeError) -> AddError {
        AddError::Range(error)
    }
}

impl fmt::Display for AddError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            AddError::Range(error) => error.fmt(f),
            AddError::TooManyNodes(node) => too_many(f, *node),
            AddError::NoMetadata(bytes) => {
                write!(f, "cannot allocate {bytes} for the words of the range")
            }
            AddError::NoTables { frames, error } => {
                write!(
                    f,
                    "cannot allocate {frames} frames for page tables and descriptors: {error}"
                )
            }
        }
    }
}

impl core::error::Error for AddError {}
