//! Memory goes: prepare unmaps it, the device takes it, commit forgets it.

use super::{Hotplug, OnlineType};
use crate::addr::{Pfn, PfnRange};
use crate::geometry::{PAGEBLOCK_FRAMES, SECTION_FRAMES};
use crate::hooks::Hooks;
use crate::mapping::Mapping;
use crate::origin::MachineId;
use crate::platform::Platform;
use crate::sync::Ordering;
use crate::token::Token;
use crate::words::Part;
use core::fmt;

/// Memory that is ready to go: offline and unmapped, its page tables kept. Commit it when the
/// device has taken it, abandon it when the device has not.
///
/// One that is dropped or forgotten leaves the memory unmapped, present in all counts and held for
/// good: a device may have taken it.
#[derive(Debug)]
#[must_use = "the memory is neither here nor gone until it is committed or abandoned"]
pub struct Removal {
    machine: MachineId,
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

impl<P: Platform, M: Mapping> Hotplug<'_, P, M> {
    /// Unmaps `range`, which must be offline.
    ///
    /// Cost: O(sections).
    ///
    /// # Errors
    /// [`RemoveError`].
    pub fn prepare_remove(&mut self, range: PfnRange) -> Result<Removal, RemoveError> {
        self.check_removable(range)?;
        self.frames.hold(range);
        Ok(self.unmap(range, false))
    }

    /// Whether all of `range` is there, offline and nobody's.
    pub(super) fn check_removable(&self, range: PfnRange) -> Result<(), RemoveError> {
        if range.is_empty() || !range.is_pageblock_aligned() {
            return Err(RemoveError::Unaligned(range));
        }
        if !self.is_announced(range) {
            return Err(RemoveError::NotPresent(range));
        }
        for part in self.all_parts(range) {
            let Part { section, blocks } = part.map_err(RemoveError::NotPresent)?;
            let absent = blocks & !section.present.load(Ordering::Acquire);
            if absent != 0 {
                return Err(RemoveError::NotPresent(section.first_block(absent)));
            }
            let online = blocks & section.online.load(Ordering::Acquire);
            if online != 0 {
                return Err(RemoveError::Online(section.first_block(online)));
            }
            let held = blocks & section.isolated.load(Ordering::Acquire);
            if held != 0 {
                return Err(RemoveError::Held(section.first_block(held)));
            }
        }
        match self.keeps_for_others(range, range) {
            Some(kept) => Err(RemoveError::Describes(kept)),
            None => Ok(()),
        }
    }

    /// Unmaps `range`, which is offline and held.
    pub(super) fn hand_over(&mut self, range: PfnRange) -> Removal {
        self.unmap(range, true)
    }

    /// Unmaps `range`, which is offline and held.
    fn unmap(&mut self, range: PfnRange, was_online: bool) -> Removal {
        // SAFETY: what is present is mapped. It is offline, so that nobody has a frame of it, and
        // held, so that it stays offline.
        unsafe { self.mapping.unmap(range) };
        let keeps = self.frames.kept_in(range) != 0;
        Removal { machine: self.machine(), range, was_online, keeps }
    }

    /// The memory is gone, and what was poisoned of it forgotten. Cannot fail on the machine that
    /// prepared it.
    ///
    /// Cost: O(sections).
    ///
    /// # Errors
    /// The removal, if another machine prepared it.
    pub fn commit_remove(&mut self, removal: Removal) -> Result<(), Removal> {
        removal.of(self.frames).map(|removal| self.take_out(removal.range))
    }

    /// `range`, which is held and unmapped, is gone.
    fn take_out(&mut self, range: PfnRange) {
        self.set_present(range, false);
        self.undescribe(range);
        self.frames.let_go(range);
        self.forget(range);
    }

    /// What was poisoned of memory that has gone, and the page tables that mapped it.
    pub(super) fn forget(&mut self, range: PfnRange) {
        self.frames.forget_poison(range);
        // SAFETY: it is unmapped and absent; adding it again maps it again.
        self.take_back(|mapping, free| unsafe { mapping.release_tables(range, free) });
    }

    /// The memory stays: mapped again, and online again as it was if it was before a [`Shrink`] took
    /// it. What is poisoned of it stays out of use. Cannot fail on the machine that prepared it.
    ///
    /// [`Shrink`]: super::Shrink
    ///
    /// Cost: O(sections).
    ///
    /// # Errors
    /// The removal, if another machine prepared it.
    pub fn abandon_remove(
        &mut self,
        removal: Removal,
        hooks: &mut dyn Hooks,
    ) -> Result<(), Removal> {
        let removal = removal.of(self.frames)?;
        // SAFETY: `unmap` took this range out, and only a commit releases its tables.
        unsafe { self.mapping.remap(removal.range) };
        if removal.was_online {
            self.put_back(removal.range, hooks);
        } else {
            self.frames.let_go(removal.range);
        }
        Ok(())
    }

    /// Memory that was taken offline to be removed, and is held, is online again as it was.
    pub(super) fn put_back(&mut self, range: PfnRange, hooks: &mut dyn Hooks) {
        self.frames.let_go(range);
        self.bring_online(range, OnlineType::AsBefore, hooks);
    }

    /// Removes memory that is offline and that no device has a say in: prepare and commit in one.
    ///
    /// Cost: O(sections).
    ///
    /// # Errors
    /// [`RemoveError`].
    pub fn remove(&mut self, range: PfnRange) -> Result<(), RemoveError> {
        let removal = self.prepare_remove(range)?;
        self.take_out(removal.range);
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
    /// The removal as it was, if a part of it [keeps](Mapping::keeps) descriptors and `pfn` lies within
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

impl Token for Removal {
    fn machine(&self) -> MachineId {
        self.machine
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
