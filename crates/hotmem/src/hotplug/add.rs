//! Memory comes: prepare takes what mapping it will need, commit maps it.

use super::Hotplug;
use crate::addr::PfnRange;
use crate::frames::{AllocError, Frames, Want};
use crate::hooks::{Hooks, Spare};
use crate::known::Known;
use crate::origin::{Foreign, MachineId, Token};
use crate::platform::Platform;
use crate::region::Zone;
use crate::sync::Ordering;
use core::fmt;

/// Memory that is ready to be added: everything that could fail is done. Dropping it undoes it; one
/// that is forgotten leaves the place held and what was taken for it allocated, for good.
#[must_use = "nothing is added before it is committed"]
pub struct Addition<'f, P: Platform> {
    frames: &'f Frames<P>,
    range: PfnRange,
    tables: PfnRange,
    spare: Spare,
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
    /// So many frames for page tables and descriptors could not be had.
    NoTables {
        /// How many, in one piece.
        frames: u64,
        /// Why.
        error: AllocError,
    },
}

impl<'f, P: Platform> Hotplug<'f, P> {
    /// Takes all that adding `range` will need. The memory itself need not be there yet.
    ///
    /// Cost: O(sections), and the allocation of what the hooks need, in one piece.
    ///
    /// # Errors
    /// [`AddError`].
    pub fn prepare_add(
        &mut self,
        range: PfnRange,
        hooks: &mut impl Hooks,
    ) -> Result<Addition<'f, P>, AddError> {
        let more = hooks.descriptors_needed(range);
        self.prepare(range, more, hooks)
    }

    /// The same, with so many frames beside those for page tables.
    pub(super) fn prepare(
        &mut self,
        range: PfnRange,
        more: u64,
        hooks: &mut impl Hooks,
    ) -> Result<Addition<'f, P>, AddError> {
        if range.is_empty() || !range.is_pageblock_aligned() {
            return Err(AddError::Unaligned(range));
        }
        if !self.is_announced(range) {
            return Err(AddError::NotAnnounced(range));
        }
        for (slot, index, blocks, section) in self.words(range) {
            let present = blocks & section.present.load(Ordering::Acquire);
            if present != 0 {
                return Err(AddError::Present(self.frames.first_block(slot, index, present)));
            }
            let device = blocks & section.device();
            if device != 0 {
                return Err(AddError::Device(self.frames.first_block(slot, index, device)));
            }
            let held = blocks & section.isolated.load(Ordering::Acquire);
            if held != 0 {
                return Err(AddError::Held(self.frames.first_block(slot, index, held)));
            }
        }
        if let Some(kept) = self.leaves_with_descriptors(range) {
            return Err(AddError::Held(kept));
        }
        let frames = hooks.tables_needed(range).saturating_add(more);
        let spare = self.spare(frames).map_err(|error| AddError::NoTables { frames, error })?;
        self.frames.hold(range);
        Ok(Addition { frames: self.frames, range, tables: spare.left(), spare })
    }

    /// Adds it as RAM: mapped and offline, to be put [online](Self::online) by whoever asked for it.
    /// The memory is there now; this cannot fail on the machine that prepared it.
    ///
    /// Cost: O(sections).
    ///
    /// # Errors
    /// The addition, if another machine prepared it.
    pub fn commit_add(
        &mut self,
        addition: Addition<'f, P>,
        hooks: &mut impl Hooks,
    ) -> Result<(), Foreign<Addition<'f, P>>> {
        addition.of(self.frames).map(|addition| self.bring_in(addition, hooks))
    }

    fn bring_in(&self, mut addition: Addition<'f, P>, hooks: &mut impl Hooks) {
        addition.map(hooks);
        let range = addition.range;
        self.describe(range, &mut addition.spare, hooks);
        self.set_present(range, true);
    }

    /// Frames for what must not fail later.
    pub(super) fn spare(&self, frames: u64) -> Result<Spare, AllocError> {
        let taken = match frames {
            0 => PfnRange::EMPTY,
            _ => self.frames.alloc(Want::frames(frames))?,
        };
        Ok(Spare::new(taken, self.machine()))
    }

    /// What is nobody's is present from now on, or the other way round.
    pub(super) fn set_present(&self, range: PfnRange, present: bool) {
        let mut moves = self.frames.no_moves_yet();
        for (slot, index, blocks, section) in self.words(range) {
            if present {
                // Release: who finds it present finds it mapped.
                section.present.fetch_or(blocks, Ordering::Release);
            } else {
                section.present.fetch_and(!blocks, Ordering::AcqRel);
                self.frames.set_zone(slot, index, blocks, Zone::Kernel, &mut moves);
            }
        }
    }

    /// Adds memory that is there already, and leaves it offline: prepare and commit in one.
    ///
    /// Cost: O(sections).
    ///
    /// # Errors
    /// [`AddError`].
    pub fn add(&mut self, range: PfnRange, hooks: &mut impl Hooks) -> Result<(), AddError> {
        let addition = self.prepare_add(range, hooks)?;
        self.bring_in(addition, hooks);
        Ok(())
    }
}

impl<P: Platform> Addition<'_, P> {
    /// What is to be added.
    #[must_use]
    pub fn range(&self) -> PfnRange {
        self.range
    }

    pub(super) fn map(&mut self, hooks: &mut impl Hooks) {
        hooks.map(self.range, &mut self.spare);
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
        self.frames.free_rest(&self.spare);
    }
}

impl<P: Platform> Frames<P> {
    /// What the kernel has not taken of a spare. A hook may have exchanged it for another
    /// machine's, whose frames are not this one's to free.
    pub(super) fn free_rest(&self, spare: &Spare) {
        if spare.machine() == self.id() && !spare.left().is_empty() {
            // Allocated for it and not taken since.
            self.free(spare.left()).known();
        }
    }
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
            AddError::NoTables { frames, error } => {
                write!(f, "no {frames} frames for page tables and descriptors: {error}")
            }
        }
    }
}

impl core::error::Error for AddError {}
