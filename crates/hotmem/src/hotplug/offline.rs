//! All of a range goes offline, or none of it.

use super::drain::{Drained, Window};
use super::{Blocker, Budget, Hotplug, Progress};
use crate::addr::PfnRange;
use crate::geometry::SECTION_FRAMES;
use crate::hooks::Hooks;
use crate::isolate::Isolation;
use crate::platform::Platform;
use core::fmt;

/// A range on its way offline. Poll it until it is done; [`cancel`](Self::cancel) it, or it stays
/// isolated.
///
/// It is isolated window by window, so that what lives in the first windows can still move into
/// the later ones only until those are reached, and never starves the machine: room for the live
/// memory is checked before each window.
#[must_use = "a request does nothing until it is polled"]
pub struct Offline<'f, P> {
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
    /// Starts to take `range` offline.
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
            None => Ok(Offline { range, held: None, window: None }),
        }
    }
}

impl<'f, P: Platform> Offline<'f, P> {
    /// Goes on. After [`Progress::Pending`] it can be polled again; the part that is isolated stays
    /// so meanwhile.
    pub fn poll(
        &mut self,
        hotplug: &mut Hotplug<'f, P>,
        hooks: &mut impl Hooks,
        mut budget: Budget,
    ) -> Progress<PfnRange> {
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
            match hotplug.open_window(window, 0, hooks) {
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
        match self.held.take().map(|held| hotplug.take_offline(held, hooks)) {
            None => Progress::Done(self.range),
            Some(Ok(range)) => Progress::Done(range),
            // Drained a while ago, and nothing is allocated there since: only a wrong free can have
            // come between.
            Some(Err((held, in_use))) => {
                self.held = Some(held);
                Progress::Pending(Blocker { range: in_use.range(), why: super::Why::Busy })
            }
        }
    }

    /// Gives everything back that was isolated: the range stays online.
    pub fn cancel(mut self, hotplug: &mut Hotplug<'f, P>, hooks: &mut impl Hooks) {
        if let Some(window) = self.window.take() {
            hotplug.give_back(window.into_isolation(), hooks);
        }
        if let Some(held) = self.held.take() {
            hotplug.give_back(held, hooks);
        }
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
