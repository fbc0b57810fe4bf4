//! Memory comes: prepare takes what mapping it will need, commit maps it.

use super::Hotplug;
use super::nodes::too_many;
use crate::addr::{Bytes, Pfn, PfnRange};
use crate::frames::{AllocError, AllocRequest, Frames};
use crate::geometry::SECTION_FRAMES;
use crate::known::Known;
use crate::mapping::Mapping;
use crate::origin::MachineId;
use crate::platform::Platform;
use crate::sync::Ordering;
use crate::token::Token;
use crate::words::{NodeId, NodeIndex, Part, TooManyNodes, Zone};
use core::fmt;

/// Memory that is to be added. A plain range goes to the node that its region was
/// [announced](crate::Announce::on_node) for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AddRequest {
    range: PfnRange,
    node: Option<NodeId>,
    device: bool,
}

impl AddRequest {
    /// This memory, as RAM.
    #[must_use]
    pub const fn range(range: PfnRange) -> AddRequest {
        AddRequest { range, node: None, device: false }
    }

    /// It belongs to this node, whatever its region was announced for.
    #[must_use]
    pub const fn on_node(self, node: NodeId) -> AddRequest {
        AddRequest { node: Some(node), ..self }
    }

    /// It is a device's, and not RAM: mapped, and left to its driver.
    #[must_use]
    pub const fn as_device(self) -> AddRequest {
        AddRequest { device: true, ..self }
    }
}

impl From<PfnRange> for AddRequest {
    fn from(range: PfnRange) -> AddRequest {
        AddRequest::range(range)
    }
}

/// Memory that is ready to be added: everything that could fail is done. Dropping it undoes it; one
/// that is forgotten leaves the place held and what was taken for it allocated, for good.
#[must_use = "nothing is added before it is committed"]
pub struct Addition<'f, P: Platform> {
    frames: &'f Frames<P>,
    range: PfnRange,
    tables: PfnRange,
    /// Of these, what the kernel has not taken.
    spare: PfnRange,
    device: bool,
}

/// Why memory could not be added. Nothing has changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AddError {
    /// No frames, or not whole pageblocks (2 MiB).
    Unaligned(PfnRange),
    /// Not within one announced region.
    NotAnnounced(PfnRange),
    /// This pageblock of it is there already.
    Present(PfnRange),
    /// This pageblock of it is device memory.
    Device(PfnRange),
    /// This pageblock is being added or removed: a part of it, or where it would be described.
    Held(PfnRange),
    /// This pageblock, which is there or is being added, shares a section (128 MiB) with a part of
    /// it and is another node's. A section has one node.
    OtherNode(PfnRange),
    /// Its node would be one more than the [`MAX_NODES`](crate::MAX_NODES) that a machine can have.
    TooManyNodes(NodeId),
    /// There is not so much kernel memory free, or kept for words.
    NoMetadata(Bytes),
    /// So many frames for page tables and descriptors could not be had.
    NoTables {
        /// How many, in one piece.
        frames: u64,
        /// Why.
        error: AllocError,
    },
}

impl<'f, P: Platform, M: Mapping> Hotplug<'f, P, M> {
    /// Takes all that adding memory will need. The memory itself need not be there yet.
    ///
    /// Where nothing was before, words are made: 12 KiB for each 8 GiB, 4 KiB for each 128 GiB and
    /// 8 KiB for each 4 TiB that it has a part of, and 4 KiB for two nodes. They stay for what
    /// comes there next, also if the addition is dropped. Where no kernel memory is free for them,
    /// one of each is kept in reserve, until kernel memory comes online or is free again.
    ///
    /// Cost: O(sections), and the allocation of what the mapping needs, in one piece.
    ///
    /// # Errors
    /// [`AddError`].
    pub fn prepare_add(
        &mut self,
        what: impl Into<AddRequest>,
    ) -> Result<Addition<'f, P>, AddError> {
        let AddRequest { range, node, device } = what.into();
        if range.is_empty() || !range.is_pageblock_aligned() {
            return Err(AddError::Unaligned(range));
        }
        let region = self.words().announced_at(range.start());
        let Some(region) = region.filter(|region| region.range.covers(range)) else {
            return Err(AddError::NotAnnounced(range));
        };
        let mut nodes = self.words().naming();
        let node = nodes.name(node.unwrap_or(region.node));
        let node = node.map_err(|TooManyNodes(node)| AddError::TooManyNodes(node))?;
        for Part { section, blocks } in self.parts(range) {
            let present = blocks & section.present.load(Ordering::Acquire);
            if present != 0 {
                return Err(AddError::Present(section.first_block(present)));
            }
            let device = blocks & section.device();
            if device != 0 {
                return Err(AddError::Device(section.first_block(device)));
            }
            let held = blocks & section.isolated.load(Ordering::Acquire);
            if held != 0 {
                return Err(AddError::Held(section.first_block(held)));
            }
        }
        if let Some(kept) = self.leaves_with_descriptors(range) {
            return Err(AddError::Held(kept));
        }
        if let Some(other) = self.of_other_node(range, node) {
            return Err(AddError::OtherNode(other));
        }
        let descriptors = if device { 0 } else { self.mapping.descriptors_needed(range) };
        let frames = self.mapping.tables_needed(range).saturating_add(descriptors);
        let spare = self.spare(frames).map_err(|error| AddError::NoTables { frames, error })?;
        if let Err(missing) = self.make_words(range, node) {
            self.frames.free_rest(spare);
            return Err(AddError::NoMetadata(missing));
        }
        nodes.keep();
        self.words().set_node(range, node);
        self.frames.hold(range);
        Ok(Addition { frames: self.frames, range, tables: spare, spare, device })
    }

    /// A pageblock of another node that is there, or on its way, in a section of `range`.
    fn of_other_node(&self, range: PfnRange, node: NodeIndex) -> Option<PfnRange> {
        let sections = self.parts(range.align_outward(SECTION_FRAMES as u64));
        let others = sections.filter(|part| part.section.node() != node);
        others.map(|part| part.section).find_map(|section| {
            let there = section.present.load(Ordering::Acquire) | section.device();
            let there = there | section.isolated.load(Ordering::Acquire);
            (there != 0).then(|| section.first_block(there))
        })
    }

    /// Under loom, whose atomics are no plain memory, a model keeps the words.
    #[cfg(loom)]
    fn make_words(&mut self, _: PfnRange, _: NodeIndex) -> Result<(), Bytes> {
        Ok(())
    }

    /// Adds it, as RAM: mapped and offline, to be put [online](Self::online) by whoever asked for
    /// it. Or as a [device's](AddRequest::as_device): mapped. The memory is there now; this cannot fail
    /// on the machine that prepared it.
    ///
    /// Cost: O(sections).
    ///
    /// # Errors
    /// The addition, if another machine prepared it.
    pub fn commit_add(&mut self, addition: Addition<'f, P>) -> Result<(), Addition<'f, P>> {
        addition.of(self.frames).map(|addition| self.bring_in(addition))
    }

    fn bring_in(&mut self, mut addition: Addition<'f, P>) {
        addition.map(&mut self.mapping);
        self.fill_holes(addition.range);
        let range = addition.range;
        if addition.device {
            self.set_device(range, true);
        } else {
            self.describe(range, &mut addition.spare);
            self.set_present(range, true);
        }
    }

    /// Frames for what must not fail later.
    pub(super) fn spare(&self, frames: u64) -> Result<PfnRange, AllocError> {
        match frames {
            0 => Ok(PfnRange::EMPTY),
            _ => self.frames.alloc_range(AllocRequest::frames(frames)),
        }
    }

    /// What is nobody's is present from now on, or the other way round.
    pub(super) fn set_present(&self, range: PfnRange, present: bool) {
        let mut moves = self.frames.no_moves_yet();
        for Part { section, blocks } in self.parts(range) {
            if present {
                // Release: who finds it present finds it mapped.
                section.present.fetch_or(blocks, Ordering::Release);
            } else {
                section.present.fetch_and(!blocks, Ordering::AcqRel);
                self.frames.set_zone(section, blocks, Zone::Kernel, &mut moves);
            }
        }
    }

    /// Adds memory that is there already, and leaves it offline or to its driver: prepare and commit
    /// in one.
    ///
    /// Cost: O(sections).
    ///
    /// # Errors
    /// [`AddError`].
    pub fn add(&mut self, what: impl Into<AddRequest>) -> Result<(), AddError> {
        let addition = self.prepare_add(what)?;
        self.bring_in(addition);
        Ok(())
    }
}

impl<P: Platform> Addition<'_, P> {
    /// What is to be added.
    #[must_use]
    pub fn range(&self) -> PfnRange {
        self.range
    }

    /// For the machine that has prepared it.
    pub(super) fn map(&mut self, mapping: &mut impl Mapping) {
        let spare = &mut self.spare;
        // SAFETY: the range is being added, and was not mapped; the frames were allocated for it.
        unsafe { mapping.map(self.range, &mut || take_first(spare)) };
    }

    /// The frames that were taken for page tables and descriptors.
    #[must_use]
    pub fn tables(&self) -> PfnRange {
        self.tables
    }
}

impl<P: Platform> Drop for Addition<'_, P> {
    fn drop(&mut self) {
        self.frames.let_go(self.range);
        self.frames.free_rest(self.spare);
    }
}

impl<P: Platform> Frames<P> {
    /// Frees what the kernel has not taken of the frames that were allocated for it.
    pub(super) fn free_rest(&self, spare: PfnRange) {
        if !spare.is_empty() {
            // Allocated for it and not taken since.
            self.free_range(spare).known();
        }
    }
}

/// Takes the first frame of `spare`, if there is one.
pub(super) fn take_first(spare: &mut PfnRange) -> Option<Pfn> {
    let frame = spare.start();
    let (taken, left) = spare.split_at(frame.checked_add(1)?);
    *spare = left;
    (!taken.is_empty()).then_some(frame)
}

impl<P: Platform> Token for Addition<'_, P> {
    fn machine(&self) -> MachineId {
        self.frames.id()
    }
}

impl<P: Platform> fmt::Debug for Addition<'_, P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Addition").field(&self.range).finish()
    }
}

impl fmt::Display for AddError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            AddError::Unaligned(range) => write!(f, "{range} is not whole pageblocks"),
            AddError::NotAnnounced(range) => write!(f, "{range} is not announced"),
            AddError::Present(range) => write!(f, "{range} is present already"),
            AddError::Device(range) => write!(f, "{range} is device memory"),
            AddError::Held(range) => write!(f, "{range} is being added or removed"),
            AddError::OtherNode(range) => {
                write!(f, "it shares a section with {range}, which is another node's")
            }
            AddError::TooManyNodes(node) => too_many(f, *node),
            AddError::NoMetadata(bytes) => write!(f, "no {bytes} free for its words"),
            AddError::NoTables { frames, error } => {
                write!(f, "no {frames} frames for page tables and descriptors: {error}")
            }
        }
    }
}

impl core::error::Error for AddError {}
