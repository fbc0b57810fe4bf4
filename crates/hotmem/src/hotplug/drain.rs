//! Isolates a window of pageblocks and migrates the frames that are allocated in it.

use super::Hotplug;
use super::budget::Allowance;
use crate::addr::PfnRange;
use crate::blocker::{Blocker, BlockerKind};
use crate::hooks::{Hooks, Migration};
use crate::isolate::{Isolation, ParkedIsolation};
use crate::mapping::Map;
use crate::platform::Platform;
use crate::range_error::Veto;
use crate::words::Zone;

/// How many times in a row [`Hooks::migrate`] may make no progress before the window counts as
/// blocked.
const MAX_FUTILE_TRIES: u32 = 8;

/// A window: isolated pageblocks that are being drained.
pub(super) struct Window<'f, P> {
    isolation: Isolation<'f, P>,
    /// The number of frames that were in use when the window was isolated.
    live_frames: u64,
    /// The range that `drain` last found in use.
    last_in_use: Option<PfnRange>,
    /// How many times in a row `drain` has found this same range again.
    futile_tries: u32,
}

/// The result of draining a window.
pub(super) enum DrainProgress {
    /// No frame of the window is in use.
    Done,
    /// The budget is used up.
    Working,
    /// This blocker keeps the window from being drained.
    Blocked(Blocker),
}

impl<'f, P: Platform> Window<'f, P> {
    /// Makes a window of `isolation`, whose pageblocks may have been isolated in several other
    /// windows.
    pub(super) fn of(isolation: Isolation<'f, P>) -> Window<'f, P> {
        Window { isolation, live_frames: 0, last_in_use: None, futile_tries: 0 }
    }

    pub(super) fn live_frames(&self) -> u64 {
        self.live_frames
    }

    /// Returns whether all of the window was free when it was isolated.
    pub(super) fn was_free(&self) -> bool {
        self.isolation.was_free()
    }

    pub(super) fn into_isolation(self) -> Isolation<'f, P> {
        self.isolation
    }
}

/// A window whose memory an allocation may take back, because its request waits.
pub(super) struct ParkedWindow<'f, P> {
    isolation: ParkedIsolation<'f, P>,
    last_in_use: Option<PfnRange>,
    futile_tries: u32,
}

impl<'f, P: Platform> Window<'f, P> {
    /// Parks the window.
    ///
    /// # Errors
    /// Returns the window if too many are parked.
    pub(super) fn park(self) -> Result<ParkedWindow<'f, P>, Window<'f, P>> {
        let Window { isolation, live_frames, last_in_use, futile_tries } = self;
        match isolation.park() {
            Ok(isolation) => Ok(ParkedWindow { isolation, last_in_use, futile_tries }),
            Err(isolation) => Err(Window { isolation, live_frames, last_in_use, futile_tries }),
        }
    }
}

impl<'f, P: Platform> ParkedWindow<'f, P> {
    #[cfg(feature = "internals")]
    pub(super) fn range(&self) -> PfnRange {
        self.isolation.range()
    }

    /// Returns the window, or the range of the window if an allocation has taken its memory back.
    pub(super) fn unpark(self) -> Result<Window<'f, P>, PfnRange> {
        let ParkedWindow { isolation, last_in_use, futile_tries } = self;
        let range = isolation.range();
        match isolation.unpark() {
            // The number of live frames is read only when a window was just isolated, so it is not
            // kept.
            Some(isolation) => Ok(Window { last_in_use, futile_tries, ..Window::of(isolation) }),
            None => Err(range),
        }
    }
}

impl<'f, P: Platform, M: Map> Hotplug<'f, P, M> {
    /// Isolates `window`. The frames in use in `window` have to move, and so do `more_live` frames
    /// of other windows. If there is not enough free memory elsewhere for all of them, or if the
    /// kernel refuses, `window` is released again.
    pub(super) fn open_window(
        &mut self,
        window: PfnRange,
        more_live: u64,
        hooks: &mut dyn Hooks,
    ) -> Result<Window<'f, P>, Blocker> {
        let isolation = self.frames.call().isolate_range(window).map_err(Blocker::from_isolate)?;
        if self.find_in_use(&isolation).is_some() {
            // Drain magazines now: the window is isolated, so a frame of it that is freed from a
            // magazine is not allocated again.
            self.frames.platform().drain_magazines();
        }
        let live = self.find_in_use(&isolation).map_or(0, |_| isolation.frames_in_use());
        let all = live.saturating_add(more_live);
        let enough_free = self
            .frames
            .call()
            .ensure_free(&Zone::ALL, all.saturating_add(self.settings.min_free_frames));
        let agreed = enough_free
            .map_err(|free| BlockerKind::NotEnoughFree {
                live: all,
                free: free.saturating_sub(self.settings.min_free_frames),
            })
            .and_then(|()| {
                hooks.going_offline(window).map_err(|Veto(reason)| BlockerKind::Veto(reason))
            });
        match agreed {
            Ok(()) => Ok(Window { live_frames: live, ..Window::of(isolation) }),
            Err(kind) => {
                isolation.release();
                Err(kind.at(window))
            }
        }
    }

    /// Calls [`Hooks::discard`] for these pageblocks, one after the other, until `missing` frames
    /// are freed or the budget is used up. Calls `freed_in` with each pageblock and the number of its
    /// frames that were freed. Returns the last pageblock for which it called the hook.
    pub(super) fn discard(
        &self,
        blocks: impl Iterator<Item = PfnRange>,
        missing: u64,
        hooks: &mut dyn Hooks,
        allowance: &mut Allowance,
        freed_in: &mut dyn FnMut(PfnRange, u64),
    ) -> Option<PfnRange> {
        let mut last = None;
        let mut freed = 0;
        for range in blocks {
            last = Some(range);
            let used = self.frames.call().used_in_pageblock_of(range.start());
            if used > 0 {
                hooks.discard(range);
                let freed_here =
                    used.saturating_sub(self.frames.call().used_in_pageblock_of(range.start()));
                freed_in(range, freed_here);
                freed += freed_here;
            }
            if !allowance.spend(used.max(1)) || freed >= missing {
                break;
            }
        }
        last
    }

    /// Returns a part of the isolated memory that is in use. If only metadata is in use, moves the
    /// reserves elsewhere, drops self-hosted bitmaps that describe only this memory, and looks again.
    /// The reserves come first: bitmaps stay as long as they describe a frame that is in use.
    fn find_in_use(&mut self, isolation: &Isolation<'f, P>) -> Option<Blocker> {
        let in_use = isolation.in_use()?;
        if in_use.kind != BlockerKind::Metadata {
            return Some(in_use);
        }
        #[cfg(not(loom))]
        self.frames.call().move_reserves_out_of(isolation.range());
        isolation.drop_bitmaps();
        isolation.in_use()
    }

    /// Migrates the frames in use in an isolated window, as far as the budget allows.
    pub(super) fn drain(
        &mut self,
        window: &mut Window<'f, P>,
        hooks: &mut dyn Hooks,
        allowance: &mut Allowance,
    ) -> DrainProgress {
        loop {
            let Some(in_use) = self.find_in_use(&window.isolation) else {
                return DrainProgress::Done;
            };
            let range = in_use.range;
            // If the same frames are still in use, the last try made no progress.
            let is_same = window.last_in_use.replace(range) == Some(range);
            window.futile_tries = if is_same { window.futile_tries + 1 } else { 0 };
            let kind = match in_use.kind {
                BlockerKind::Allocated => match hooks.migrate(range) {
                    Migration::Moved | Migration::Freed | Migration::Retry => BlockerKind::Retry,
                    Migration::Unmovable(reason) => {
                        return DrainProgress::Blocked(BlockerKind::Unmovable(reason).at(range));
                    }
                },
                BlockerKind::Busy => {
                    crate::sync::spin_hint();
                    BlockerKind::Busy
                }
                _ => return DrainProgress::Blocked(in_use),
            };
            if window.futile_tries >= MAX_FUTILE_TRIES {
                window.last_in_use = None;
                return DrainProgress::Blocked(kind.at(range));
            }
            if !allowance.spend(range.frames()) {
                return DrainProgress::Working;
            }
        }
    }

    /// Takes the memory of an isolation token offline, for tests and benches.
    ///
    /// # Errors
    /// Returns the token and the frames that are in use, or [`BlockerKind::Foreign`] if the token
    /// belongs to another instance. The memory stays isolated.
    #[cfg(feature = "internals")]
    #[doc(hidden)]
    pub fn take_offline(
        &mut self,
        isolation: Isolation<'f, P>,
        hooks: &mut dyn Hooks,
    ) -> Result<PfnRange, (Isolation<'f, P>, Blocker)> {
        if !isolation.is_of(self.frames) {
            let foreign = BlockerKind::Foreign.at(isolation.range());
            return Err((isolation, foreign));
        }
        let range = self.take_offline_held(isolation, hooks)?;
        self.frames.call().clear_held(range);
        Ok(range)
    }

    /// Takes the memory of an isolation token out of the allocator. After that, the memory is
    /// present and offline, and the engine remembers the zone that it was in. The memory stays
    /// held. The token belongs to this instance.
    ///
    /// Cost: O(sections) if all of the memory was free when it was isolated, otherwise
    /// O(pageblocks).
    ///
    /// # Errors
    /// Returns the token and the frames that are in use. The memory stays isolated.
    pub(super) fn take_offline_held(
        &mut self,
        isolation: Isolation<'f, P>,
        hooks: &mut dyn Hooks,
    ) -> Result<PfnRange, (Isolation<'f, P>, Blocker)> {
        let range = isolation.leave_allocator()?;
        let empty = self.record_offline(range);
        hooks.offlined(range);
        for node in empty.filter(|&node| !self.is_populated(node)) {
            hooks.node_vanished(self.words().node_of_index(node));
        }
        Ok(range)
    }

    /// Releases isolated memory because it could not be drained, or because its request was
    /// cancelled.
    pub(super) fn release_cancelled(&mut self, isolation: Isolation<'f, P>, hooks: &mut dyn Hooks) {
        let range = isolation.range();
        isolation.release();
        hooks.offline_cancelled(range);
    }
}
