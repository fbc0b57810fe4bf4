//! All of a range goes offline, or none of it.

use super::drain::{Drained, Window};
use super::{Blocker, Budget, Hotplug, Progress, Why};
use crate::addr::PfnRange;
use crate::geometry::SECTION_FRAMES;
use crate::hooks::Hooks;
use crate::isolate::Isolation;
use crate::origin::{Foreign, MachineId, Token};
use crate::platform::Platform;
use core::fmt;

/// A range on its way offline. Poll it until it is done, or [`cancel`](Self::cancel) it: one that is
/// dropped or forgotten leaves what it has come to isolated and counted.
///
/// It is isolated window by window, so that what lives in the first windows can still move into
/// the later ones only until those are reached, and never starves the machine: room for the live
/// memory is checked before each window.
#[must_use = "a request does nothing until it is polled"]
pub struct Offline<'f, P> {
    machine: MachineId,
    range: PfnRange,
    /// What is isolated and drained so far, from the bottom up.
    held: Option<Isolation<'f, P>>,
    /// The window that is being drained.
    window: Option<Window<'f, P>>,
}

/// Why a range cannot go offline at all. Nothing has changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum OfflineError {
    /// No frames, or not whole pageblocks (2 MiB).
    Unaligned(PfnRange),
    /// Not all of it is online.
    NotOnline(PfnRange),
}

impl<'f, P: Platform> Hotplug<'f, P> {
    /// Starts to take `range` offline: nothing is done to it before it is polled.
    ///
    /// Cost: O(sections).
    ///
    /// # Errors
    /// [`OfflineError`].
    pub fn offline(&mut self, range: PfnRange) -> Result<Offline<'f, P>, OfflineError> {
        if range.is_empty() || !range.is_pageblock_aligned() {
            return Err(OfflineError::Unaligned(range));
        }
        if !self.is_announced(range) {
            return Err(OfflineError::NotOnline(range));
        }
        let offline = self.words(range).find_map(|(slot, index, blocks, section)| {
            let offline = blocks & !section.online.load(crate::sync::Ordering::Acquire);
            (offline != 0).then(|| self.frames.first_block(slot, index, offline))
        });
        match offline {
            Some(offline) => Err(OfflineError::NotOnline(offline)),
            None => Ok(Offline { machine: self.machine(), range, held: None, window: None }),
        }
    }
}

impl<'f, P: Platform> Offline<'f, P> {
    /// Goes on. After [`Progress::Pending`] it can be polled again; the part that is isolated stays
    /// so meanwhile. On another machine than its own, it is pending for [`Why::Foreign`].
    ///
    /// Cost: O(sections) of what is free, O(pageblocks) of what is not, up to the budget.
    pub fn poll(
        &mut self,
        hotplug: &mut Hotplug<'f, P>,
        hooks: &mut impl Hooks,
        mut budget: Budget,
    ) -> Progress<PfnRange> {
        if self.machine != hotplug.machine() {
            return Progress::Pending(Blocker { range: self.range, why: Why::Foreign });
        }
        loop {
            if let Some(mut window) = self.window.take() {
                match hotplug.drain(&mut window, hooks, &mut budget) {
                    Drained::Yes => {
                        let drained = window.into_isolation();
                        self.held = Some(match self.held.take() {
                            Some(held) => held.join(drained),
                            None => drained,
                        });
                    }
                    Drained::Working => {
                        self.window = Some(window);
                        return Progress::Working;
                    }
                    Drained::Blocked(blocker) => {
                        self.window = Some(window);
                        return Progress::Pending(blocker);
                    }
                }
            }
            let next = self.held.as_ref().map_or(self.range.start(), |held| held.range().end());
            let rest = self.range.split_at(next).1;
            let Some(window) = rest.chunks(SECTION_FRAMES as u64).next() else {
                return self.finish(hotplug, hooks);
            };
            match hotplug.open_window(window, hooks) {
                Ok(window) => self.window = Some(window),
                Err(blocker) => return Progress::Pending(blocker),
            }
            if !budget.spend(window.frames() / crate::geometry::PAGEBLOCK_FRAMES as u64) {
                return Progress::Working;
            }
        }
    }

    fn finish(
        &mut self,
        hotplug: &mut Hotplug<'f, P>,
        hooks: &mut impl Hooks,
    ) -> Progress<PfnRange> {
        match self.held.take().map(|held| hotplug.leave(held, hooks)) {
            None => Progress::Done(self.range),
            Some(Ok(range)) => {
                hotplug.frames.let_go(range);
                Progress::Done(range)
            }
            // Drained a while ago, and nothing is allocated there since: only a wrong free can have
            // come between.
            Some(Err((held, in_use))) => {
                self.held = Some(held);
                Progress::Pending(Blocker { range: in_use.range(), why: Why::Busy })
            }
        }
    }

    /// Gives everything back that was isolated: the range stays online. Cannot fail on the machine
    /// that it was begun on.
    ///
    /// Cost: O(pageblocks) of what was isolated.
    ///
    /// # Errors
    /// The request, if it was begun on another machine.
    pub fn cancel(
        self,
        hotplug: &mut Hotplug<'f, P>,
        hooks: &mut impl Hooks,
    ) -> Result<(), Foreign<Offline<'f, P>>> {
        let Offline { window, held, .. } = self.of(hotplug.frames)?;
        if let Some(window) = window {
            hotplug.give_back(window.into_isolation(), hooks);
        }
        if let Some(held) = held {
            hotplug.give_back(held, hooks);
        }
        Ok(())
    }
}

impl<P> Token for Offline<'_, P> {
    fn machine(&self) -> MachineId {
        self.machine
    }
}

impl<P> fmt::Debug for Offline<'_, P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Offline").field("range", &self.range).field("held", &self.held).finish()
    }
}

impl fmt::Display for OfflineError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            OfflineError::Unaligned(range) => write!(f, "{range} is not whole pageblocks"),
            OfflineError::NotOnline(range) => write!(f, "{range} is not online"),
        }
    }
}

impl core::error::Error for OfflineError {}
