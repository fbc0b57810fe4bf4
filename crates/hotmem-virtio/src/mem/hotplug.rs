//! Makes the engine the driver's memory manager.
//!
//! Plugging is *prepare_add → PLUG → commit_add → online*; unplugging is a [`Shrink`] whose runs go
//! *prepare_remove → UNPLUG → commit_remove*, or are abandoned when the device refuses.

use super::memory::{Memory, Obstacle, Run, Transition, Unplug};
use super::offline_search::{highest_offline, last};
use super::reachable::Reachable;
use super::reason::Reason;
use super::remaining::Remaining;
use crate::hull::hull;
use crate::missing_frames::missing_frames;
use core::fmt;
use hotmem::{
    AddError, Addition, Budget, Bytes, Frames, Hooks, Hotplug, Map, NodeId, OnlineType, Pfn,
    PfnRange, Platform, Progress, RangeError, RangeErrorKind, Removal, Shrink, ShrinkOptions,
    State,
};

/// The operations of one device that are in progress in the engine.
///
/// This value must live as long as the device is used, also if its driver ends and another begins:
/// it knows which memory is in transition, and the next driver completes or undoes that. For each
/// step, [`bind`](Self::bind) borrows the engine, so that several devices can share one engine. It
/// must always be the same engine. If this value is dropped, memory that was being removed stays
/// isolated and counted, because nobody knows whether the device has unplugged it.
pub struct HotplugMemory<'f, P: Platform> {
    /// What the device's driver has announced of its region, or an empty range.
    pub(super) region: Reachable,
    /// The frames of the engine that was bound first.
    instance: Option<&'f Frames<P>>,
    online: Option<OnlineType>,
    budget: Budget,
    /// The largest number of frames that one request adds.
    max_addition: u64,
    /// Whether the device promises that blocks are zero when it has plugged them.
    plugs_zeroes: bool,
    pub(super) addition: Option<(PfnRange, Addition<'f, P>)>,
    /// The frames of kernel memory for want of which an addition was refused last.
    missing_frames: u64,
    /// The range from the first to the last memory that is plugged, and offline until it comes
    /// online or is unplugged.
    pub(super) added_range: PfnRange,
    /// Memory whose removal is prepared.
    prepared_removal: Option<Removal<'f, P>>,
    /// The upper part of that memory, if the removal was divided.
    upper_removal: Option<Removal<'f, P>>,
    /// The range in which offline memory is searched first: below the last removal.
    search_range: PfnRange,
    shrink: Option<ShrinkInProgress<'f, P>>,
}

/// A shrink in progress and its parameters.
struct ShrinkInProgress<'f, P> {
    shrink: Shrink<'f, P>,
    unplug: Unplug,
    /// The shrink is blocked until the driver tries again. A unit may be isolated meanwhile.
    is_pending: bool,
}

/// The memory manager of a device, bound to the engine and the kernel's hooks.
pub(super) struct BoundMemory<'a, 'f, P: Platform, M, H> {
    pub(super) memory: &'a mut HotplugMemory<'f, P>,
    pub(super) hotplug: &'a mut Hotplug<'f, P, M>,
    hooks: &'a mut H,
}

impl<'f, P: Platform> HotplugMemory<'f, P> {
    /// Makes the memory manager of a device. Its memory is brought online as `online`, or, with
    /// `None`, as [`Settings::auto_online`](hotmem::Settings::auto_online). `budget` limits how
    /// much is isolated and migrated in one call when memory is removed.
    #[must_use]
    pub fn new(online: impl Into<Option<OnlineType>>, budget: Budget) -> HotplugMemory<'f, P> {
        let online = online.into();
        HotplugMemory {
            region: PfnRange::EMPTY.into(),
            instance: None,
            online,
            budget,
            max_addition: u64::MAX,
            plugs_zeroes: false,
            addition: None,
            missing_frames: 0,
            added_range: PfnRange::EMPTY,
            prepared_removal: None,
            upper_removal: None,
            search_range: PfnRange::EMPTY,
            shrink: None,
        }
    }

    /// Limits the memory that one request adds. A kernel that maps memory by small pages can then
    /// use the first part before it has mapped the last part. Each request adds at least a unit of
    /// the device.
    #[must_use]
    pub fn with_max_addition(self, max_addition: Bytes) -> HotplugMemory<'f, P> {
        HotplugMemory { max_addition: max_addition.frames(), ..self }
    }

    /// Says that blocks are zero when the device has plugged them, so that an engine that [keeps
    /// zero marks](Frames::keep_zero_marks) need not zero them again. The specification leaves
    /// their contents undefined (5.15.6.1); those of QEMU's device are zero, unless
    /// something wrote to them while they were unplugged. Memory that was
    /// plugged before the driver asked for it is not known to be zero. A false promise breaks that of
    /// `keep_zero_marks`.
    #[must_use]
    pub fn with_zeroed_blocks(self) -> HotplugMemory<'f, P> {
        HotplugMemory { plugs_zeroes: true, ..self }
    }

    /// Returns the number of frames of kernel memory for want of which the engine has refused to add
    /// memory since the last call, or 0. The driver tries again later. So a kernel with a balloon
    /// can ask it for these frames ([`EngineMemory::need`](crate::balloon::EngineMemory::need)), and
    /// the plug succeeds once the balloon has returned them.
    pub fn take_missing_frames(&mut self) -> u64 {
        core::mem::take(&mut self.missing_frames)
    }

    /// Removes the memory of a device that was removed for good, and withdraws its region. The device
    /// was stopped, and is not asked. Call this again while it is working, and later, if the kernel
    /// likes, while memory remains in use: such memory stays online, so its RAM must stay too.
    ///
    /// Memory whose removal was prepared when the device stopped is removed. If all memory is
    /// removed, the result is ready.
    ///
    /// # Errors
    /// [`OtherInstance`] if `hotplug` is not the engine of the first call. Nothing has changed.
    pub fn withdraw<M: Map, H: Hooks>(
        &mut self,
        hotplug: &mut Hotplug<'f, P, M>,
        hooks: &mut H,
    ) -> Result<Progress<(), Remaining>, OtherInstance> {
        Ok(self.bind_to(hotplug, hooks)?.withdraw())
    }

    /// Binds the memory manager to the engine and the kernel's hooks for one or more steps of the
    /// driver. Returns the [`Memory`] to pass to the driver.
    ///
    /// # Errors
    /// [`OtherInstance`] if `hotplug` is not the engine of the first call. Nothing has changed.
    pub fn bind<'a, M: Map, H: Hooks>(
        &'a mut self,
        hotplug: &'a mut Hotplug<'f, P, M>,
        hooks: &'a mut H,
    ) -> Result<impl Memory + use<'a, 'f, P, M, H>, OtherInstance> {
        self.bind_to(hotplug, hooks)
    }

    fn bind_to<'a, M: Map, H: Hooks>(
        &'a mut self,
        hotplug: &'a mut Hotplug<'f, P, M>,
        hooks: &'a mut H,
    ) -> Result<BoundMemory<'a, 'f, P, M, H>, OtherInstance> {
        let instance = *self.instance.get_or_insert(hotplug.frames());
        if !core::ptr::eq(instance, hotplug.frames()) {
            return Err(OtherInstance);
        }
        Ok(BoundMemory { memory: self, hotplug, hooks })
    }
}

/// The error of [`HotplugMemory::bind`] for an engine that is not that of the first call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct OtherInstance;

impl fmt::Display for OtherInstance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the device's memory belongs to another instance")
    }
}

impl core::error::Error for OtherInstance {}

impl<P: Platform, M: Map, H: Hooks> BoundMemory<'_, '_, P, M, H> {
    fn commit_plug(&mut self, range: PfnRange, is_zero: bool) {
        if let Some((_, addition)) = self.memory.addition.take() {
            self.hotplug.commit_add(if is_zero { addition.zeroed() } else { addition });
            self.memory.added_range = hull(self.memory.added_range, range);
            self.memory.search_range = PfnRange::EMPTY;
        }
    }
}

impl<P: Platform, M: Map, H: Hooks> Memory for BoundMemory<'_, '_, P, M, H> {
    fn announce(
        &mut self,
        region: PfnRange,
        unit: u64,
        node: Option<u16>,
    ) -> Result<Reachable, Obstacle> {
        // The memory of a device without a node belongs to the first online node.
        let first_node = || self.hotplug.nodes().next().unwrap_or_default();
        let node = node.map_or_else(first_node, |node| NodeId(node.into()));
        self.announce_reachable(region, unit, node)
    }

    fn transition(&self) -> Option<Transition> {
        if let Some((range, _)) = &self.memory.addition {
            return Some(Transition::Plug(*range));
        }
        let lower = self.memory.prepared_removal.as_ref()?.range();
        let upper = self.memory.upper_removal.as_ref().map_or(PfnRange::EMPTY, Removal::range);
        Some(Transition::Unplug(hull(lower, upper)))
    }

    fn divide(&mut self, at: Pfn) -> bool {
        let HotplugMemory { prepared_removal, upper_removal, .. } = self.memory;
        if upper_removal.is_some() {
            return false;
        }
        match prepared_removal.take().map(|removal| removal.split_at(at)) {
            Some(Ok((lower, upper))) => {
                (*prepared_removal, *upper_removal) = (Some(lower), Some(upper));
                true
            }
            Some(Err(whole)) => {
                *prepared_removal = Some(whole);
                false
            }
            None => false,
        }
    }

    fn run_at(&self, from: Pfn, within: PfnRange) -> Run {
        let is_present = |state| !matches!(state, State::Unknown | State::Absent);
        let (mut range, state) = self.hotplug.state_at(from, within.end());
        let plugged = is_present(state);
        while range.end() < within.end() {
            let (next, state) = self.hotplug.state_at(range.end(), within.end());
            match PfnRange::new(range.start(), next.end()) {
                Some(both) if !next.is_empty() && is_present(state) == plugged => range = both,
                _ => break,
            }
        }
        Run { range, plugged }
    }

    fn prepare_plug(&mut self, range: PfnRange, unit: u64) -> Result<PfnRange, Obstacle> {
        let max_addition = self.memory.max_addition.max(unit) & !(unit - 1);
        let mut part =
            range.split_at(range.start().checked_add(max_addition).unwrap_or(range.end())).0;
        loop {
            match self.hotplug.prepare_add(part) {
                Ok(addition) => {
                    self.memory.addition = Some((part, addition));
                    return Ok(part);
                }
                // A smaller range needs fewer words and page tables, and may be mapped.
                Err(
                    error @ (AddError::NoMetadata(_)
                    | AddError::NoTables { .. }
                    | AddError::Range(RangeError {
                        kind: RangeErrorKind::Vetoed(_), ..
                    })),
                ) => {
                    let half = (part.frames() / 2) & !(unit - 1);
                    match PfnRange::with_len(part.start(), half) {
                        Some(less) if !less.is_empty() => part = less,
                        _ => {
                            self.memory.missing_frames = missing_frames(&error);
                            return Err(error.into());
                        }
                    }
                }
                Err(error) => return Err(error.into()),
            }
        }
    }

    fn plugged(&mut self, range: PfnRange) {
        self.commit_plug(range, self.memory.plugs_zeroes);
    }

    fn adopted(&mut self, range: PfnRange) {
        self.commit_plug(range, false);
    }

    fn bring_online(&mut self) -> Result<(), Obstacle> {
        while !self.memory.added_range.is_empty() {
            let added_range = self.memory.added_range;
            let (run, state) = self.hotplug.state_at(added_range.start(), added_range.end());
            let end = match state {
                State::Offline => {
                    self.hotplug.online(run, self.memory.online, self.hooks)?;
                    run.end()
                }
                // It was removed again, or is online.
                _ => run.end(),
            };
            self.memory.added_range = added_range.split_at(end).1;
        }
        Ok(())
    }

    fn plug_refused(&mut self, _range: PfnRange) {
        self.memory.addition = None;
    }

    fn prepare_unplug(&mut self, unplug: Unplug) -> Result<PfnRange, Obstacle> {
        if self.memory.shrink.as_ref().is_some_and(|shrinking| shrinking.unplug != unplug) {
            self.stop_shrinking();
        }
        if self.memory.shrink.as_ref().is_none_or(|shrinking| shrinking.is_pending)
            && let Some(range) = self.highest_offline(unplug)
            // Memory that holds the descriptors of online memory cannot be removed before that.
            && let Ok(removal) = self.hotplug.prepare_remove(range)
        {
            self.memory.prepared_removal = Some(removal);
            self.memory.search_range = unplug.region.split_at(range.start()).0;
            return Ok(range);
        }
        let Unplug { region, total, max_frames, unit } = unplug;
        let shrinking = self.memory.shrink.get_or_insert_with(|| ShrinkInProgress {
            shrink: Shrink::new(ShrinkOptions {
                frames: total,
                unit,
                max_run_frames: max_frames,
                is_persistent: true,
                ..region.into()
            }),
            unplug,
            is_pending: false,
        });
        shrinking.is_pending = false;
        match shrinking.shrink.poll(self.hotplug, self.hooks, self.memory.budget) {
            Progress::Ready(removal) => {
                let range = removal.range();
                // The next call continues where this one stopped, if it requests the rest.
                let total = total.saturating_sub(range.frames());
                shrinking.unplug = Unplug { total, max_frames: max_frames.min(total), ..unplug };
                self.memory.prepared_removal = Some(removal);
                Ok(range)
            }
            Progress::Working => Err(Obstacle::Working),
            Progress::Pending(blocker) => {
                shrinking.is_pending = true;
                Err(Obstacle::Later(Reason::Blocked(blocker)))
            }
            Progress::Idle => {
                shrinking.is_pending = true;
                Err(Obstacle::Later(Reason::Other("no more memory can be removed")))
            }
        }
    }

    fn unplugged(&mut self, _range: PfnRange) {
        if let Some(removal) = self.take_removal() {
            self.hotplug.commit_remove(removal);
        }
    }

    fn unplug_refused(&mut self, _range: PfnRange) {
        self.stop_shrinking();
        self.memory.search_range = PfnRange::EMPTY;
        if let Some(removal) = self.take_removal() {
            self.hotplug.abandon_remove(removal, self.hooks);
        }
    }

    fn cancel(&mut self) {
        self.stop_shrinking();
    }
}

impl<'f, P: Platform, M: Map, H: Hooks> BoundMemory<'_, 'f, P, M, H> {
    /// Takes the prepared removal, or the lower part of a divided one.
    pub(super) fn take_removal(&mut self) -> Option<Removal<'f, P>> {
        let HotplugMemory { prepared_removal, upper_removal, .. } = self.memory;
        core::mem::replace(prepared_removal, upper_removal.take())
    }

    pub(super) fn stop_shrinking(&mut self) {
        if let Some(ShrinkInProgress { shrink, .. }) = self.memory.shrink.take() {
            shrink.cancel(self.hotplug, self.hooks);
        }
    }

    /// Returns the highest plugged memory that is offline already, at most `unplug.max_frames` frames.
    /// Searches below the last removal first, then everywhere.
    fn highest_offline(&self, unplug: Unplug) -> Option<PfnRange> {
        let below = self.memory.search_range.intersection(unplug.region);
        let mut searched_ranges = [below, unplug.region].into_iter();
        let units =
            searched_ranges.find_map(|within| highest_offline(self.hotplug, within, unplug))?;
        Some(last(units, unplug.max_frames))
    }
}

impl<P: Platform> fmt::Debug for HotplugMemory<'_, P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HotplugMemory")
            .field("online", &self.online)
            .field("addition", &self.addition)
            .field("added_range", &self.added_range)
            .field("prepared_removal", &self.prepared_removal)
            .field("upper_removal", &self.upper_removal)
            .field("shrink", &self.shrink.as_ref().map(|shrinking| &shrinking.shrink))
            .finish()
    }
}
