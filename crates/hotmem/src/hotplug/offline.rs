//! All of a range goes offline, or none of it.

use super::drain::{Drained, Window};
use super::{Blocker, Budget, Hotplug, Progress, Why};
use crate::addr::{Pfn, PfnRange};
use crate::geometry::{PAGEBLOCK_FRAMES, SECTION_FRAMES};
use crate::hooks::Hooks;
use crate::isolate::Isolation;
use crate::mapping::Mapping;
use crate::origin::MachineId;
use crate::platform::Platform;
use crate::token::Token;
use crate::words::Part;
use core::fmt;

/// A range on its way offline. Poll it until it is done, or [`cancel`](Self::cancel) it: one that is
/// dropped or forgotten leaves what it has come to isolated and counted.
///
/// All of it is isolated, window by window, before anything moves: so what lives there moves once, and
/// never from one window to the next. The machine is not starved: before each window there must be
/// room elsewhere for what lives there and in those before, and if there is none, the kernel is asked
/// to [discard](Hooks::discard) what it can do without.
#[must_use = "a request does nothing until it is polled"]
pub struct Offline<'f, P> {
    machine: MachineId,
    range: PfnRange,
    /// What is still to be isolated.
    rest: PfnRange,
    /// Frames of what is isolated that were in use then.
    live: u64,
    /// Up to here the kernel was asked for what it can do without.
    asked: Pfn,
    /// What is isolated, from the bottom up: drained, being drained, still to be drained.
    held: Option<Isolation<'f, P>>,
    window: Option<Window<'f, P>>,
    ahead: Option<Isolation<'f, P>>,
}

/// Why a range cannot go offline at all. Nothing has changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum OfflineError {
    /// No frames, or not whole pageblocks (2 MiB).
    Unaligned(PfnRange),
    /// Not all of it is online.
    NotOnline(PfnRange),
}

impl<'f, P: Platform, M: Mapping> Hotplug<'f, P, M> {
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
        let offline = self.all_parts(range).find_map(|part| match part {
            Ok(Part { section, blocks }) => {
                let offline = blocks & !section.online.load(crate::sync::Ordering::Acquire);
                (offline != 0).then(|| section.first_block(offline))
            }
            Err(absent) => Some(absent),
        });
        match offline {
            Some(offline) => Err(OfflineError::NotOnline(offline)),
            None => Ok(Offline {
                machine: self.machine(),
                range,
                rest: range,
                live: 0,
                asked: range.start(),
                held: None,
                window: None,
                ahead: None,
            }),
        }
    }
}

impl<'f, P: Platform> Offline<'f, P> {
    /// Goes on. After [`Progress::Pending`] it can be polled again; the part that is isolated stays
    /// so meanwhile. On another machine than its own, it is pending for [`Why::Foreign`].
    ///
    /// Cost: O(sections) of what is free, O(pageblocks) of what is not, up to the budget.
    pub fn poll<M: Mapping>(
        &mut self,
        hotplug: &mut Hotplug<'f, P, M>,
        hooks: &mut dyn Hooks,
        mut budget: Budget,
    ) -> Progress<PfnRange> {
        if self.machine != hotplug.machine() {
            return Progress::Pending(Blocker { range: self.range, why: Why::Foreign });
        }
        while let Some(next) = self.rest.chunks(SECTION_FRAMES as u64).next() {
            match hotplug.open_window(next, self.live, hooks) {
                Ok(window) => {
                    self.live += window.live();
                    self.ahead = join(self.ahead.take(), window.into_isolation());
                    self.rest = self.rest.split_at(next.end()).1;
                }
                Err(Blocker { why: Why::NoRoom { live, free }, .. }) if self.asked < next.end() => {
                    let unasked = self.range.split_at(next.end()).0.split_at(self.asked).1;
                    let blocks = unasked.chunks(PAGEBLOCK_FRAMES as u64);
                    let missing = live.saturating_sub(free);
                    let last = hotplug.discard(blocks, missing, hooks, &mut budget);
                    self.asked = last.map_or(next.end(), PfnRange::end);
                    self.live = self.ahead.as_ref().map_or(0, Isolation::frames_in_use);
                }
                Err(blocker) => {
                    // Some may have been freed since.
                    let before = self.live;
                    self.live = self.ahead.as_ref().map_or(0, Isolation::frames_in_use);
                    if self.live >= before {
                        self.asked = self.range.start();
                        return Progress::Pending(blocker);
                    }
                }
            }
            if !budget.spend(next.frames() / PAGEBLOCK_FRAMES as u64) {
                return Progress::Working;
            }
        }
        while let Some(mut window) = self.next_window() {
            match hotplug.drain(&mut window, hooks, &mut budget) {
                Drained::Yes => self.held = join(self.held.take(), window.into_isolation()),
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
        self.finish(hotplug, hooks)
    }

    /// What is to be drained now.
    fn next_window(&mut self) -> Option<Window<'f, P>> {
        self.window.take().or_else(|| {
            let ahead = self.ahead.take()?;
            let first = ahead.range().chunks(SECTION_FRAMES as u64).next()?;
            let next = if ahead.was_free() { ahead.range() } else { first };
            let (window, rest) = ahead.split_at(next.end());
            self.ahead = (!rest.range().is_empty()).then_some(rest);
            Some(Window::of(window))
        })
    }

    fn finish<M: Mapping>(
        &mut self,
        hotplug: &mut Hotplug<'f, P, M>,
        hooks: &mut dyn Hooks,
    ) -> Progress<PfnRange> {
        match self.held.take().map(|held| hotplug.leave(held, hooks)) {
            None => Progress::Done(self.range),
            Some(Ok(range)) => {
                hotplug.frames.let_go(range);
                // Polled again, it begins again.
                (self.rest, self.live, self.asked) = (self.range, 0, self.range.start());
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
    pub fn cancel<M: Mapping>(
        self,
        hotplug: &mut Hotplug<'f, P, M>,
        hooks: &mut dyn Hooks,
    ) -> Result<(), Offline<'f, P>> {
        let Offline { held, window, ahead, .. } = self.of(hotplug.frames)?;
        let window = window.map(Window::into_isolation);
        for isolated in [ahead, window, held].into_iter().flatten() {
            hotplug.give_back(isolated, hooks);
        }
        Ok(())
    }
}

impl<P> Token for Offline<'_, P> {
    fn machine(&self) -> MachineId {
        self.machine
    }
}

/// A token and the one right above it.
fn join<'f, P: Platform>(
    below: Option<Isolation<'f, P>>,
    above: Isolation<'f, P>,
) -> Option<Isolation<'f, P>> {
    Some(match below {
        Some(below) => below.join(above),
        None => above,
    })
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
