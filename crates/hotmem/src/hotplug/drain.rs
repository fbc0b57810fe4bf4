//! Isolate a window and move what lives there.

use super::{Blocker, Budget, Hotplug, Why};
use crate::addr::PfnRange;
use crate::geometry::PAGEBLOCK_FRAMES;
use crate::hooks::{Hooks, Migration, Veto};
use crate::isolate::{InUse, Isolation};
use crate::mapping::Mapping;
use crate::platform::Platform;
use crate::token::Token;
use crate::words::Zone;
use core::fmt;

/// Times that the kernel is asked to move something, one after the other, without any progress.
const TRIES: u32 = 8;

/// Why isolated memory stays in the allocator. Nothing has changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LeaveError {
    /// This is still in use.
    InUse(InUse),
    /// It is another machine's.
    Foreign,
}

/// Isolated memory that is being drained.
pub(super) struct Window<'f, P> {
    isolation: Isolation<'f, P>,
    /// Frames that were in use when it was opened.
    live: u64,
    /// What was in use the last time that somebody looked, and how often in a row.
    last: Option<PfnRange>,
    tries: u32,
}

/// How far a window has been drained.
pub(super) enum Drained {
    /// Nothing of it is in use.
    Yes,
    /// The budget is used up.
    Working,
    /// Something stays.
    Blocked(Blocker),
}

impl<'f, P> Window<'f, P> {
    /// What was isolated in windows, and is drained in others.
    pub(super) fn of(isolation: Isolation<'f, P>) -> Window<'f, P> {
        Window { isolation, live: 0, last: None, tries: 0 }
    }

    pub(super) fn live(&self) -> u64 {
        self.live
    }

    pub(super) fn into_isolation(self) -> Isolation<'f, P> {
        self.isolation
    }
}

impl<'f, P: Platform, M: Mapping> Hotplug<'f, P, M> {
    /// Isolates `window`, if there is room for what lives there, and for as much as still has to
    /// move from elsewhere, and the kernel agrees.
    pub(super) fn open_window(
        &mut self,
        window: PfnRange,
        elsewhere: u64,
        hooks: &mut dyn Hooks,
    ) -> Result<Window<'f, P>, Blocker> {
        let isolation = self.frames.isolate(window).map_err(Blocker::from_isolate)?;
        if self.in_use(&isolation).is_some() {
            // From here on nothing of it that is freed is allocated again.
            self.frames.platform().drain_magazines();
        }
        let live = self.in_use(&isolation).map_or(0, |_| isolation.frames_in_use());
        let all = live.saturating_add(elsewhere);
        let room = self.frames.ensure_free(&Zone::ALL, all.saturating_add(self.settings.floor));
        let agreed = room
            .map_err(|free| Why::NoRoom {
                live: all,
                free: free.saturating_sub(self.settings.floor),
            })
            .and_then(|()| hooks.going_offline(window).map_err(|Veto(reason)| Why::Veto(reason)));
        match agreed {
            Ok(()) => Ok(Window { live, ..Window::of(isolation) }),
            Err(why) => {
                isolation.release();
                Err(Blocker { range: window, why })
            }
        }
    }

    /// Has the kernel free what it can do without in these pageblocks, one after the other, until
    /// that makes `missing` frames or the budget is used up. Returns the last one it came to.
    pub(super) fn discard(
        &self,
        blocks: impl Iterator<Item = PfnRange>,
        missing: u64,
        hooks: &mut dyn Hooks,
        budget: &mut Budget,
    ) -> Option<PfnRange> {
        let mut last = None;
        let mut freed = 0;
        for range in blocks {
            last = Some(range);
            let used = self.frames.used_of(range.start());
            if used == 0 {
                continue;
            }
            hooks.discard(range);
            freed += used.saturating_sub(self.frames.used_of(range.start()));
            if !budget.spend(1) || freed >= missing {
                break;
            }
        }
        last
    }

    /// What is in use of memory that is about to go: not the bitmaps that go with it.
    fn in_use(&mut self, isolation: &Isolation<'f, P>) -> Option<InUse> {
        let in_use = isolation.in_use()?;
        if !matches!(in_use, InUse::Metadata(_)) {
            return Some(in_use);
        }
        isolation.drop_bitmaps();
        isolation.in_use()
    }

    /// Moves what is in use in an isolated window, as far as the budget reaches.
    pub(super) fn drain(
        &mut self,
        window: &mut Window<'f, P>,
        hooks: &mut dyn Hooks,
        budget: &mut Budget,
    ) -> Drained {
        loop {
            let Some(in_use) = self.in_use(&window.isolation) else { return Drained::Yes };
            let range = in_use.range();
            // The same frames again means that nothing was gained.
            let same = window.last.replace(range) == Some(range);
            window.tries = if same { window.tries + 1 } else { 0 };
            let why = match in_use {
                InUse::Metadata(_) => {
                    return Drained::Blocked(Blocker { range, why: Why::Metadata });
                }
                InUse::InFlight(_) => {
                    crate::sync::spin_hint();
                    Why::Busy
                }
                InUse::Frames(used) => match hooks.migrate(used) {
                    Migration::Moved | Migration::Gone | Migration::Retry => Why::Retry,
                    Migration::Pinned(why) => {
                        return Drained::Blocked(Blocker { range, why: Why::Pinned(why) });
                    }
                },
            };
            if window.tries >= TRIES {
                window.last = None;
                return Drained::Blocked(Blocker { range, why });
            }
            if !budget.spend(range.frames().div_ceil(PAGEBLOCK_FRAMES as u64)) {
                return Drained::Working;
            }
        }
    }

    /// The third exit of a token: its memory leaves the allocator. It is present and offline, and
    /// its zone is remembered.
    ///
    /// Cost: O(sections) if all of it was free when it was isolated, otherwise O(pageblocks).
    ///
    /// # Errors
    /// The token and why it is where it was.
    pub fn take_offline(
        &mut self,
        isolation: Isolation<'f, P>,
        hooks: &mut dyn Hooks,
    ) -> Result<PfnRange, (Isolation<'f, P>, LeaveError)> {
        let own = isolation.of(self.frames);
        let isolation = own.map_err(|isolation| (isolation, LeaveError::Foreign))?;
        let left = self.leave(isolation, hooks);
        let range = left.map_err(|(isolation, in_use)| (isolation, LeaveError::InUse(in_use)))?;
        self.frames.let_go(range);
        Ok(range)
    }

    /// As [`take_offline`](Self::take_offline), but for this machine's own, and the memory stays
    /// held.
    pub(super) fn leave(
        &mut self,
        isolation: Isolation<'f, P>,
        hooks: &mut dyn Hooks,
    ) -> Result<PfnRange, (Isolation<'f, P>, InUse)> {
        let range = isolation.leave()?;
        let empty = self.note_offline(range);
        hooks.offlined(range);
        for node in empty.filter(|&node| !self.is_populated(node)) {
            hooks.node_vanished(self.words().node_named(node));
        }
        Ok(range)
    }

    /// Gives memory back that could not be drained, or need not go after all.
    pub(super) fn give_back(&mut self, isolation: Isolation<'f, P>, hooks: &mut dyn Hooks) {
        let range = isolation.range();
        isolation.release();
        hooks.offline_cancelled(range);
    }
}

impl fmt::Display for LeaveError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LeaveError::InUse(in_use) => write!(f, "{} is in use", in_use.range()),
            LeaveError::Foreign => f.write_str("it belongs to another machine"),
        }
    }
}

impl core::error::Error for LeaveError {}
