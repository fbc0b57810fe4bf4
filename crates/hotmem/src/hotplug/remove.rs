//! Removes memory. Prepare unmaps it, then the device takes it, and commit makes it absent.

use super::{Hotplug, OnlineType};
use crate::addr::{Pfn, PfnRange};
use crate::geometry::{PAGEBLOCK_FRAMES, SECTION_FRAMES};
use crate::hooks::Hooks;
use crate::mapping::Mapping;
use crate::origin::MachineId;
use crate::platform::Platform;
use crate::range_error::{RangeError, RangeErrorKind};
use crate::sync::Ordering;
use crate::token::Token;

/// A prepared removal: the memory is offline and unmapped, and its page tables are kept. Commit it
/// when the device has taken the memory; abandon it when the device has not.
///
/// Dropping or forgetting a removal leaves the memory unmapped, present in all counts, and held for
/// good: a device may have taken it.
#[derive(Debug)]
#[must_use = "the memory is neither here nor gone until it is committed or abandoned"]
pub struct Removal {
    machine: MachineId,
    range: PfnRange,
    /// The memory was taken offline for this removal, so abandoning it puts the memory online
    /// again.
    was_online: bool,
    /// A part of the range holds descriptors of other parts: these cannot stay without it.
    keeps: bool,
}

impl<P: Platform, M: Mapping> Hotplug<'_, P, M> {
    /// Prepares the removal of `range`, which must be offline: unmaps it.
    ///
    /// Cost: O(sections).
    ///
    /// # Errors
    /// [`RangeError`].
    pub fn prepare_remove(&mut self, range: PfnRange) -> Result<Removal, RangeError> {
        self.check_removable(range)?;
        self.frames.hold(range);
        Ok(self.unmap(range, false))
    }

    /// Checks that all of `range` is present, offline and not held, and that it holds no
    /// descriptors of memory outside it.
    pub(super) fn check_removable(&self, range: PfnRange) -> Result<(), RangeError> {
        self.check(range, RangeErrorKind::NotPresent, |section| {
            [
                (!section.present.load(Ordering::Acquire), RangeErrorKind::NotPresent),
                (section.online.load(Ordering::Acquire), RangeErrorKind::Online),
                (section.isolated.load(Ordering::Acquire), RangeErrorKind::Held),
            ]
        })?;
        match self.holder_for_others(range, range) {
            Some(kept) => Err(RangeErrorKind::Describes.at(kept)),
            None => Ok(()),
        }
    }

    /// Prepares the removal of `range`, which is held and was taken offline for this removal:
    /// unmaps it.
    pub(super) fn unmap_offlined(&mut self, range: PfnRange) -> Removal {
        self.unmap(range, true)
    }

    /// Unmaps `range`, which is offline and held.
    fn unmap(&mut self, range: PfnRange, was_online: bool) -> Removal {
        // SAFETY: present memory is mapped. The range is offline, so that no frame of it is
        // allocated, and held, so that it stays offline.
        unsafe { self.mapping.unmap(range) };
        let keeps = self.frames.descriptor_frames_in(range) != 0;
        Removal { machine: self.machine(), range, was_online, keeps }
    }

    /// Commits a removal: the memory is absent, and its poison is forgotten. Cannot fail on the
    /// machine that prepared the removal.
    ///
    /// Cost: O(sections).
    ///
    /// # Errors
    /// Returns the removal if another machine prepared it.
    pub fn commit_remove(&mut self, removal: Removal) -> Result<(), Removal> {
        removal.of(self.frames).map(|removal| self.take_out(removal.range))
    }

    /// Makes `range`, which is held and unmapped, absent.
    fn take_out(&mut self, range: PfnRange) {
        self.set_present(range, false);
        self.undescribe(range);
        self.frames.end_hold(range);
        self.forget(range);
    }

    /// Forgets the poison of `range`, which was removed, and frees the page tables that mapped it.
    pub(super) fn forget(&mut self, range: PfnRange) {
        self.frames.forget_poison(range);
        // SAFETY: the range is unmapped and absent, and is not mapped again before it is added
        // again.
        self.take_back(|mapping, free| unsafe { mapping.release_tables(range, free) });
    }

    /// Abandons a removal: the memory is mapped again, and it is online in its former zone if a
    /// [`Shrink`] took it offline. Poisoned frames of it stay out of use. Cannot fail on the
    /// machine that prepared the removal.
    ///
    /// [`Shrink`]: super::Shrink
    ///
    /// Cost: O(sections).
    ///
    /// # Errors
    /// Returns the removal if another machine prepared it.
    pub fn abandon_remove(
        &mut self,
        removal: Removal,
        hooks: &mut dyn Hooks,
    ) -> Result<(), Removal> {
        let removal = removal.of(self.frames)?;
        // SAFETY: `unmap` unmapped this range, and only a commit releases its tables.
        unsafe { self.mapping.remap(removal.range) };
        if removal.was_online {
            self.put_back(removal.range, hooks);
        } else {
            self.frames.end_hold(removal.range);
        }
        Ok(())
    }

    /// Puts `range` online again in its former zone. It was taken offline to be removed, and is
    /// held.
    pub(super) fn put_back(&mut self, range: PfnRange, hooks: &mut dyn Hooks) {
        self.frames.end_hold(range);
        self.bring_online(range, OnlineType::AsBefore, hooks);
    }

    /// Removes offline memory that no device has to acknowledge: prepares and commits in one step.
    ///
    /// Cost: O(sections).
    ///
    /// # Errors
    /// [`RangeError`].
    pub fn remove(&mut self, range: PfnRange) -> Result<(), RangeError> {
        let removal = self.prepare_remove(range)?;
        self.take_out(removal.range);
        Ok(())
    }
}

impl Removal {
    /// Returns the range to remove.
    #[must_use]
    pub fn range(&self) -> PfnRange {
        self.range
    }

    /// Divides the removal into the part below `pfn` (rounded down to a pageblock) and the part
    /// from there up, for devices that took only one of them.
    ///
    /// # Errors
    /// Returns the removal unchanged if a part of it [keeps](Mapping::keeps) descriptors and `pfn`
    /// lies within a section: the part above might stay without its descriptors.
    pub fn split_at(self, pfn: Pfn) -> Result<(Removal, Removal), Removal> {
        let (below, above) = self.range.split_at(pfn.align_down(PAGEBLOCK_FRAMES as u64));
        let cuts = !below.is_empty() && !above.is_empty();
        if self.keeps && cuts && !above.start().number().is_multiple_of(SECTION_FRAMES as u64) {
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
