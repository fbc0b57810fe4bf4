//! Removes memory. Prepare unmaps the memory, then the device takes it, and commit makes it absent.

use super::spare_frames::{FrameList, SpareFrames};
use super::{Hotplug, OnlineType};
use crate::addr::{Pfn, PfnRange};
use crate::frames::Frames;
use crate::geometry::{PAGEBLOCK_FRAMES, SECTION_FRAMES};
use crate::hooks::Hooks;
use crate::mapping::Map;
use crate::origin::InstanceId;
use crate::platform::Platform;
use crate::range_error::{RangeError, RangeErrorKind};
use crate::token::Token;
use core::fmt;
use core::mem::replace;

/// A prepared removal: the memory is offline and unmapped, and its page tables are kept. Commit the
/// removal if the device has taken the memory; abandon it if the device has not.
///
/// If a removal is dropped, the memory stays unmapped, held and counted as present, because a device
/// may have taken it. [`Hotplug::remove`] makes such memory absent. If a removal is forgotten, the
/// memory stays held for ever.
#[must_use = "the memory stays unmapped and held until the removal is committed or abandoned"]
pub struct Removal<'f, P: Platform> {
    frames: &'f Frames<P>,
    range: PfnRange,
    /// Whether the memory was taken offline for this removal. If so, abandoning the removal puts
    /// the memory online again.
    was_online: bool,
    /// Whether a part of the range holds descriptors of other parts. If so, that part cannot be
    /// removed before the other parts.
    holds_descriptors: bool,
    /// Frames for the page tables to map the memory again, if the mapping has freed them.
    tables: FrameList,
}

impl<'f, P: Platform, M: Map> Hotplug<'f, P, M> {
    /// Prepares the removal of `range`, which must be offline, and not boot memory: unmaps `range`. If
    /// the mapping frees page tables then, first allocates frames for mapping it again.
    ///
    /// Cost: O(sections).
    ///
    /// # Errors
    /// [`RangeError`].
    pub fn prepare_remove(&mut self, range: PfnRange) -> Result<Removal<'f, P>, RangeError> {
        self.check_removable(range)?;
        self.frames.call().mark_held(range);
        self.unmap(range, false).inspect_err(|_| self.frames.call().clear_held(range))
    }

    /// Checks that all of `range` is present, offline and not held, that it is not boot memory, and
    /// that it holds no descriptors of memory outside it.
    pub(super) fn check_removable(&self, range: PfnRange) -> Result<(), RangeError> {
        self.check_offline(range)?;
        if self.boot_region_at(range.start()).is_some() {
            return Err(RangeErrorKind::BootMemory.at(range));
        }
        self.check_descriptors(range)
    }

    /// Checks that `range` holds no descriptors of memory outside it.
    fn check_descriptors(&self, range: PfnRange) -> Result<(), RangeError> {
        match self.descriptors_of_others(range, range) {
            Some(descriptor_block) => Err(RangeErrorKind::HoldsDescriptors.at(descriptor_block)),
            None => Ok(()),
        }
    }

    /// Prepares the removal of `range`, which is offline and held: unmaps `range`. `was_online` says
    /// whether it was taken offline for this removal.
    ///
    /// # Errors
    /// [`RangeErrorKind::NoTables`]. The memory is still mapped.
    pub(super) fn unmap(
        &mut self,
        range: PfnRange,
        was_online: bool,
    ) -> Result<Removal<'f, P>, RangeError> {
        let frames = self.mapping.remap_tables_needed(range);
        let tables = SpareFrames::allocate(self.frames, frames, true)
            .map_err(|_| RangeErrorKind::NoTables { frames }.at(range))?
            .into_list();
        self.unmap_held(range);
        let holds_descriptors = self.frames.call().descriptor_frames_in(range) != 0;
        Ok(Removal { frames: self.frames, range, was_online, holds_descriptors, tables })
    }

    /// Unmaps `range`, which is offline and held.
    fn unmap_held(&mut self, range: PfnRange) {
        // SAFETY: `range` is present, so it is mapped. It is offline, so no frame of it is
        // allocated, and it is held, so it stays offline.
        unsafe { self.mapping.unmap(range) };
    }

    /// Commits a removal: makes the memory absent, and forgets which of its frames were poisoned. If
    /// another instance prepared the removal, drops it: see [`Removal`].
    ///
    /// Cost: O(sections).
    pub fn commit_remove(&mut self, removal: Removal<'f, P>) {
        self.commit_remove_except(removal, PfnRange::EMPTY);
    }

    /// Commits a removal of which the device has left `left`, and that cannot be
    /// [split](Removal::split_at). All of the memory becomes absent, because the part that the device
    /// took held the descriptors of `left`. The caller adds `left` again. The engine keeps the record
    /// of the poisoned frames of `left`, because it is still the same memory. If another instance
    /// prepared the removal, drops it: see [`Removal`].
    ///
    /// Cost: O(sections).
    pub fn commit_remove_except(&mut self, removal: Removal<'f, P>, left: PfnRange) {
        let Some(removal) = removal.of_instance(self.frames) else { return };
        let (range, tables) = removal.into_parts();
        drop(SpareFrames::of(self.frames, tables));
        self.make_absent(range, left);
    }

    /// Makes `range` absent, and forgets its poisoned frames, except those of `left`. `range` is held
    /// and unmapped.
    fn make_absent(&mut self, range: PfnRange, left: PfnRange) {
        self.set_present(range, false);
        self.undescribe(range);
        self.frames.call().clear_held(range);
        let (below, above) = (range.split_at(left.start()).0, range.split_at(left.end()).1);
        let forgotten = if left.is_empty() { [range, left] } else { [below, above] };
        forgotten.into_iter().for_each(|part| self.frames.call().forget_poison(part));
        self.release_tables(range);
    }

    /// Frees the page tables that mapped `range`, which was removed.
    pub(super) fn release_tables(&mut self, range: PfnRange) {
        // SAFETY: `range` is unmapped and absent, and it is not mapped again before it is added
        // again.
        self.take_back(|mapping, free| unsafe { mapping.release_tables(range, free) });
    }

    /// Abandons a removal: maps the memory again. If a [`Shrink`] took the memory offline, it comes
    /// online again in its former zone, except for its poisoned frames. If another instance prepared
    /// the removal, drops it: see [`Removal`].
    ///
    /// [`Shrink`]: super::Shrink
    ///
    /// Cost: O(sections).
    pub fn abandon_remove(&mut self, removal: Removal<'f, P>, hooks: &mut dyn Hooks) {
        let Some(removal) = removal.of_instance(self.frames) else { return };
        let was_online = removal.was_online;
        let (range, tables) = removal.into_parts();
        let mut tables = SpareFrames::of(self.frames, tables);
        // SAFETY: `unmap` unmapped `range`, and only a commit releases the tables of that range.
        // `tables` were allocated for it.
        unsafe { self.mapping.remap(range, &mut || tables.take()) };
        drop(tables);
        // The platform may have begun to take the memory.
        self.forget_zeroed(range);
        if was_online {
            self.bring_back_online(range, hooks);
        } else {
            self.frames.call().clear_held(range);
        }
    }

    /// Puts `range` online again in its former zone. `range` was taken offline to be removed, and
    /// is held.
    pub(super) fn bring_back_online(&mut self, range: PfnRange, hooks: &mut dyn Hooks) {
        self.frames.call().clear_held(range);
        self.bring_online(range, OnlineType::AsBefore, hooks);
    }

    /// Removes offline memory that no device has to acknowledge: prepares and commits in one step.
    /// Also commits the removal of memory whose [`Removal`] was dropped.
    ///
    /// Cost: O(sections).
    ///
    /// # Errors
    /// [`RangeError`].
    pub fn remove(&mut self, range: PfnRange) -> Result<(), RangeError> {
        if self.check_orphaned(range).is_ok() {
            self.check_descriptors(range)?;
            self.frames.call().clear_orphaned(range);
        } else {
            self.check_removable(range)?;
            self.frames.call().mark_held(range);
            self.unmap_held(range);
        }
        self.make_absent(range, PfnRange::EMPTY);
        Ok(())
    }
}

impl<'f, P: Platform> Removal<'f, P> {
    /// Returns the range to remove.
    #[must_use]
    pub fn range(&self) -> PfnRange {
        self.range
    }

    /// Divides the removal at `pfn` (rounded down to a pageblock) into the part below and the part
    /// above, for devices that took only one of them.
    ///
    /// # Errors
    /// Returns the removal unchanged if a part of it holds
    /// [descriptors of its own section](crate::Describe::pageblocks_needed) and `pfn` lies within a
    /// section: the part above could stay, and its descriptors would be gone. Also if the mapping
    /// [needs frames](Map::remap_tables_needed) to map the memory again: the two parts may need
    /// more than the whole, which shares tables.
    pub fn split_at(self, pfn: Pfn) -> Result<(Self, Self), Self> {
        let (below, above) = self.range.split_at(pfn.align_down(PAGEBLOCK_FRAMES as u64));
        let is_divided = !below.is_empty() && !above.is_empty();
        let is_within_section = !above.start().number().is_multiple_of(SECTION_FRAMES as u64);
        let would_lose_descriptors = self.holds_descriptors && is_within_section;
        if is_divided && (would_lose_descriptors || !self.tables.is_empty()) {
            return Err(self);
        }
        let Removal { frames, was_online, holds_descriptors, .. } = self;
        let (_, tables) = self.into_parts();
        let part = |range, tables| Removal { frames, range, was_online, holds_descriptors, tables };
        // If there are tables, one part is empty, and needs none.
        Ok(match below.is_empty() {
            true => (part(below, FrameList::EMPTY), part(above, tables)),
            false => (part(below, tables), part(above, FrameList::EMPTY)),
        })
    }

    /// Ends the removal without effect. Returns its range, and the frames to map it again.
    fn into_parts(mut self) -> (PfnRange, FrameList) {
        let range = replace(&mut self.range, PfnRange::EMPTY);
        (range, replace(&mut self.tables, FrameList::EMPTY))
    }
}

impl<P: Platform> Drop for Removal<'_, P> {
    /// Marks the memory, so that [`Hotplug::remove`] finds that no removal has it.
    fn drop(&mut self) {
        self.frames.call().mark_orphaned(self.range);
        drop(SpareFrames::of(self.frames, replace(&mut self.tables, FrameList::EMPTY)));
    }
}

impl<P: Platform> Token for Removal<'_, P> {
    fn instance(&self) -> InstanceId {
        self.frames.id()
    }
}

impl<P: Platform> fmt::Debug for Removal<'_, P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Removal").field(&self.range).finish()
    }
}
