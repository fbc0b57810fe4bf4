//! Memory goes: prepare unmaps it, the device takes it, commit forgets it.

use super::{Hotplug, OnlineType};
use crate::addr::{Pfn, PfnRange};
use crate::geometry::{PAGEBLOCK_FRAMES, SECTION_FRAMES};
use crate::hooks::Hooks;
use crate::platform::Platform;
use crate::sync::Ordering;
use core::fmt;

/// Memory that is ready to go: offline and unmapped, its page tables kept. Commit it when the
/// device has taken it, abandon it when the device has not.
#[derive(Debug)]
#[must_use = "the memory is neither here nor gone until it is committed or abandoned"]
pub struct Removal {
    range: PfnRange,
    /// It was taken offline to be removed, so it goes online again if it stays.
    was_online: bool,
    /// A part of it holds descriptors of other parts, which cannot stay without it.
    keeps: bool,
}

/// Why memory could not be removed. Nothing has changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RemoveError {
    /// No frames, or not whole pageblocks (2 MiB).
    Unaligned(PfnRange),
    /// This part of it is not present.
    NotPresent(PfnRange),
    /// This pageblock of it is online.
    Online(PfnRange),
    /// This pageblock of it is being removed already.
    Held(PfnRange),
    /// This pageblock of it holds the descriptors of memory that would stay.
    Describes(PfnRange),
}

impl<P: Platform> Hotplug<'_, P> {
    /// Unmaps `range`, which must be offline.
    ///
    /// # Errors
    /// [`RemoveError`].
    pub fn prepare_remove(
        &mut self,
        range: PfnRange,
        hooks: &mut impl Hooks,
    ) -> Result<Removal, RemoveError> {
        self.check_removable(range)?;
        self.frames.hold(range);
        hooks.unmap(range);
        Ok(Removal { range, was_online: false, keeps: self.frames.kept_in(range) != 0 })
    }

    /// Whether all of `range` is there, offline and nobody's.
    pub(super) fn check_removable(&self, range: PfnRange) -> Result<(), RemoveError> {
        if range.is_empty() || !range.is_pageblock_aligned() {
            return Err(RemoveError::Unaligned(range));
        }
        if !self.is_announced(range) {
            return Err(RemoveError::NotPresent(range));
        }
        for (slot, index, blocks, section) in self.words(range) {
            let absent = blocks & !section.present.load(Ordering::Acquire);
            if absent != 0 {
                return Err(RemoveError::NotPresent(self.frames.first_block(slot, index, absent)));
            }
            let online = blocks & section.online.load(Ordering::Acquire);
            if online != 0 {
                return Err(RemoveError::Online(self.frames.first_block(slot, index, online)));
            }
            let held = blocks & section.isolated.load(Ordering::Acquire);
            if held != 0 {
                return Err(RemoveError::Held(self.frames.first_block(slot, index, held)));
            }
        }
        match self.keeps_for_others(range, range) {
            Some(kept) => Err(RemoveError::Describes(kept)),
            None => Ok(()),
        }
    }

    /// Unmaps `range`, which is offline and held.
    pub(super) fn hand_over(&mut self, range: PfnRange, hooks: &mut impl Hooks) -> Removal {
        hooks.unmap(range);
        Removal { range, was_online: true, keeps: self.frames.kept_in(range) != 0 }
    }

    /// The memory is gone, and what was poisoned of it forgotten. Cannot fail.
    pub fn commit_remove(&mut self, removal: Removal, hooks: &mut impl Hooks) {
        self.set_present(removal.range, false);
        self.undescribe(removal.range, hooks);
        self.frames.let_go(removal.range);
        self.forget(removal.range, hooks);
    }

    /// What was poisoned of memory that has gone, and the page tables that mapped it.
    pub(super) fn forget(&self, range: PfnRange, hooks: &mut impl Hooks) {
        self.frames.forget_poison(range);
        hooks.release_tables(range, &mut |table| self.take_back(table));
    }

    /// The memory stays: mapped again, and online again if it was before a [`Shrink`] took it,
    /// except for pageblocks with poison.
    ///
    /// [`Shrink`]: super::Shrink
    pub fn abandon_remove(&mut self, removal: Removal, hooks: &mut impl Hooks) {
        hooks.remap(removal.range);
        if removal.was_online {
            self.put_back(removal.range, hooks);
        } else {
            self.frames.let_go(removal.range);
        }
    }

    /// Memory that was taken offline to be removed, and is held, is online again, as far as it has
    /// no poison.
    pub(super) fn put_back(&mut self, range: PfnRange, hooks: &mut impl Hooks) {
        self.frames.let_go(range);
        let mut rest = range;
        while let Some(part) = self.next_without_poison(&mut rest) {
            self.bring_online(part, OnlineType::AsBefore, hooks);
        }
    }

    /// Removes memory that is offline and that no device has a say in.
    ///
    /// # Errors
    /// [`RemoveError`].
    pub fn remove(&mut self, range: PfnRange, hooks: &mut impl Hooks) -> Result<(), RemoveError> {
        let removal = self.prepare_remove(range, hooks)?;
        self.commit_remove(removal, hooks);
        Ok(())
    }
}

impl Removal {
    /// What is to go.
    #[must_use]
    pub fn range(&self) -> PfnRange {
        self.range
    }

    /// The part below `pfn` (rounded down to a pageblock) and the part from there up, for devices
    /// that took one and not the other.
    ///
    /// # Errors
    /// The removal as it was, if a part of it [keeps](Hooks::keeps) descriptors and `pfn` lies within
    /// a section: the part above might stay without them.
    pub fn split_at(self, pfn: Pfn) -> Result<(Removal, Removal), Removal> {
        let (below, above) = self.range.split_at(pfn.align_down(PAGEBLOCK_FRAMES as u64));
        let cuts = !below.is_empty() && !above.is_empty();
        if self.keeps && cuts && !above.start().is_aligned(SECTION_FRAMES as u64) {
            return Err(self);
        }
        let part = |range| Removal { range, ..self };
        Ok((part(below), part(above)))
    }
}

impl fmt::Display for RemoveError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RemoveError::Unaligned(range) => write!(f, "{range} is not whole pageblocks"),
            RemoveError::NotPresent(range) => write!(f, "{range} is not present"),
            RemoveError::Online(range) => write!(f, "{range} is online"),
            RemoveError::Held(range) => write!(f, "{range} is being removed already"),
            RemoveError::Describes(range) => {
                write!(f, "{range} holds the descriptors of memory that stays")
            }
        }
    }
}

impl core::error::Error for RemoveError {}
