//! Isolates the windows of a shrink, and gives up those that cannot be drained.

use super::Shrink;
use crate::addr::{Pfn, PfnRange};
use crate::blocker::{Blocker, BlockerKind};
use crate::geometry::PAGEBLOCK_FRAMES;
use crate::hotplug::Hotplug;
use crate::hotplug::drain::Window;
use crate::hotplug::poll::Poll;
use crate::isolate::Isolation;
use crate::mapping::Map;
use crate::platform::Platform;

impl<'f, P: Platform> Shrink<'f, P> {
    /// Returns the next window to drain: the highest that is isolated already, or else the highest that
    /// was not tried.
    pub(super) fn next_window<M: Map>(&mut self, hotplug: &Hotplug<'f, P, M>) -> Option<PfnRange> {
        match &self.isolated {
            Some(isolated) => {
                let start = self.untried.start_of_last_window(isolated.range());
                Some(isolated.range().split_at(start).1)
            }
            None => self.untried.next_window(hotplug, self.frames_left, &mut self.blocker),
        }
    }

    /// Makes `next` the window that is drained, or isolates it as the first of several. Returns whether the
    /// budget is not used up.
    pub(super) fn begin_window<M: Map>(
        &mut self,
        next: PfnRange,
        poll: &mut Poll<'_, 'f, P, M>,
    ) -> bool {
        let costs_little = match self.isolated.take() {
            Some(isolated) => {
                self.begin_isolated(next, isolated, poll);
                // Memory that is isolated already costs as little as free memory.
                true
            }
            None => self.begin_untried(next, poll),
        };
        poll.allowance.spend_window(next, costs_little)
    }

    /// Makes the highest window of the isolated memory the one that is drained.
    fn begin_isolated<M: Map>(
        &mut self,
        next: PfnRange,
        isolated: Isolation<'f, P>,
        poll: &mut Poll<'_, 'f, P, M>,
    ) {
        let (below, top) = isolated.split_at(next.start());
        self.isolated = (!below.range().is_empty()).then_some(below);
        match self.descriptors_of_others(next, poll.hotplug) {
            Some(blocker) => self.give_up(top, blocker, poll),
            None => self.window = Some(Window::of(top)),
        }
    }

    /// Isolates a window while no other is isolated. Returns whether all of it was free.
    fn begin_untried<M: Map>(&mut self, next: PfnRange, poll: &mut Poll<'_, 'f, P, M>) -> bool {
        match self.open_window(next, 0, poll) {
            Ok(window) if window.live_frames() == 0 => {
                let was_free = window.was_free();
                self.window = Some(window);
                return was_free;
            }
            Ok(window) => {
                (self.live_frames, self.isolates_more) = (window.live_frames(), true);
                self.isolated = Some(window.into_isolation());
            }
            Err(Blocker { kind: BlockerKind::NotEnoughFree { live, free }, .. })
                if self.discarded_above > next.start() =>
            {
                self.discard(next, live.saturating_sub(free), poll);
            }
            Err(_) if next.frames() > self.unit => {
                self.untried.use_single_units_above(next.start());
            }
            Err(blocker) => {
                self.blocker.get_or_insert(blocker);
                self.untried.cut(next.start());
            }
        }
        false
    }

    /// Asks the kernel to discard contents of the window, so that `missing_frames` fewer have to move.
    fn discard<M: Map>(
        &mut self,
        window: PfnRange,
        missing_frames: u64,
        poll: &mut Poll<'_, 'f, P, M>,
    ) {
        let undiscarded = window.split_at(self.discarded_above).0;
        let blocks = undiscarded.chunks(PAGEBLOCK_FRAMES as u64).rev();
        let Poll { hotplug, hooks, allowance } = poll;
        let last = hotplug.discard(blocks, missing_frames, *hooks, allowance, &mut |_, _| {});
        self.discarded_above = last.map_or(window.start(), PfnRange::start);
    }

    /// Isolates the window right below the isolated memory, if the shrink will take that window and
    /// there is enough free memory elsewhere. Returns whether the budget is not used up.
    pub(super) fn isolate_more<M: Map>(&mut self, poll: &mut Poll<'_, 'f, P, M>) -> bool {
        match self.isolate_window_below(poll) {
            Some((window, was_free)) => poll.allowance.spend_window(window, was_free),
            None => {
                self.isolates_more = false;
                true
            }
        }
    }

    /// Isolates the window right below the isolated memory. Returns the window, and whether all of it
    /// was free.
    fn isolate_window_below<M: Map>(
        &mut self,
        poll: &mut Poll<'_, 'f, P, M>,
    ) -> Option<(PfnRange, bool)> {
        let isolated = self.isolated.as_ref()?.range();
        let frames_left = self.frames_left.saturating_sub(isolated.frames());
        // If this is not the next window, it is looked for again later.
        let next = { self.untried }.next_window(poll.hotplug, frames_left, &mut None)?;
        let joined = PfnRange::new(next.start(), isolated.end())?;
        if next.end() != isolated.start() || !poll.hotplug.is_announced(joined) {
            return None;
        }
        let window = self.open_window(next, self.live_frames, poll).ok()?;
        self.live_frames += window.live_frames();
        let was_free = window.was_free();
        self.isolated = self.isolated.take().map(|above| window.into_isolation().join(above));
        Some((next, was_free))
    }

    /// Isolates `window` for the shrink, unless it holds descriptors of memory that stays.
    /// `more_live` frames of other isolated memory have to move as well.
    fn open_window<M: Map>(
        &mut self,
        window: PfnRange,
        more_live: u64,
        poll: &mut Poll<'_, 'f, P, M>,
    ) -> Result<Window<'f, P>, Blocker> {
        if let Some(blocker) = self.descriptors_of_others(window, poll.hotplug) {
            return Err(blocker);
        }
        let opened = poll.hotplug.open_window(window, more_live, poll.hooks)?;
        self.untried.cut(window.start());
        Ok(opened)
    }

    /// Returns a pageblock of `window` that holds descriptors of memory that stays.
    fn descriptors_of_others<M: Map>(
        &self,
        window: PfnRange,
        hotplug: &Hotplug<'f, P, M>,
    ) -> Option<Blocker> {
        let isolated_end = self.isolated.as_ref().map_or(Pfn::ZERO, |above| above.range().end());
        let end = window.end().max(self.ready_run.end()).max(isolated_end);
        let removed = PfnRange::new(window.start(), end).unwrap_or(window);
        let found = hotplug.descriptors_of_others(window, removed)?;
        Some(BlockerKind::Metadata.at(found))
    }

    /// Handles isolated memory that cannot be drained. If it is larger than a unit, the shrink tries
    /// it again unit by unit; otherwise, it stays online.
    pub(super) fn give_up<M: Map>(
        &mut self,
        window: Isolation<'f, P>,
        blocker: Blocker,
        poll: &mut Poll<'_, 'f, P, M>,
    ) {
        let range = window.range();
        if range.frames() > self.unit {
            self.untried.use_single_units_above(range.start());
            self.isolated = Some(match self.isolated.take() {
                Some(below) => below.join(window),
                None => window,
            });
            return;
        }
        poll.hotplug.release_cancelled(window, poll.hooks);
        if self.is_next(range) {
            self.blocker.get_or_insert(blocker);
            self.untried.cut(range.start());
        }
    }

    /// Returns whether all memory above `window` was tried. Otherwise, `window` is the unit that the
    /// shrink has isolated while it was pending, and will be tried again.
    fn is_next(&self, window: PfnRange) -> bool {
        window.end() >= self.untried.range().end()
    }
}
