//! Takes all of a range offline, or none of it.

use super::budget::Allowance;
use super::drain::{DrainProgress, Window};
use super::poll::Poll;
use super::{Budget, Hotplug};
use crate::addr::{Pfn, PfnRange};
use crate::blocker::{Blocker, BlockerKind};
use crate::geometry::{PAGEBLOCK_FRAMES, SECTION_FRAMES};
use crate::hooks::Hooks;
use crate::isolate::{Isolation, ParkedIsolation};
use crate::mapping::Map;
use crate::origin::InstanceId;
use crate::platform::Platform;
use crate::progress::Progress;
use crate::range_error::{RangeError, RangeErrorKind};
use crate::sync::Ordering;
use crate::token::Token;
use core::fmt;
use core::ops::ControlFlow;

/// A request to take a range offline. Poll it until it is done, or [`cancel`](Self::cancel) it. If
/// it is dropped, the memory that it has isolated is given back, and the kernel's
/// [`Hooks::offline_cancelled`] is not called. If it is forgotten, that memory stays isolated;
/// [`Counts::isolated`](crate::Counts::isolated) still includes it.
///
/// The request isolates the whole range, window by window, before it migrates anything. So nothing
/// is migrated into a window that is still to be drained, and each allocation moves at most once.
/// The request isolates a
/// window only if there is enough free memory elsewhere for the frames in use in that window and in
/// all windows before. If there is not, it calls [`Hooks::discard`], in which the kernel frees
/// frames that it can do without.
///
/// While the request is pending, an allocation that would fail takes the isolated memory back, if no
/// more than 8 requests wait. It does not take back the memory of a poll that runs at this moment,
/// or has returned [`Progress::Working`].
#[must_use = "a request does nothing until it is polled"]
pub struct Offline<'f, P: Platform> {
    instance: InstanceId,
    range: PfnRange,
    /// The part that is still to be isolated.
    not_isolated: PfnRange,
    /// The number of frames that were in use in the isolated part when it was isolated or counted
    /// again.
    live_frames: u64,
    /// The frames of the isolated part that are in use, counted again from its start as far as the
    /// budget has allowed.
    recount: Recount,
    /// The start of the part for which [`Hooks::discard`] was not called yet.
    discard_from: Pfn,
    /// The isolated memory. From the bottom up, it is drained (`drained_part`), being drained
    /// (`window`), and still to be drained (`undrained_part`).
    drained_part: Option<Isolation<'f, P>>,
    window: Option<Window<'f, P>>,
    undrained_part: Option<Isolation<'f, P>>,
    /// All isolated memory, while the request is pending.
    parked: Option<ParkedIsolation<'f, P>>,
}

/// A count of frames in use below `end`.
#[derive(Clone, Copy)]
struct Recount {
    end: Pfn,
    frames: u64,
}

impl<'f, P: Platform, M: Map> Hotplug<'f, P, M> {
    /// Makes a request to take `range` offline. Nothing happens before the request is polled.
    ///
    /// Cost: O(sections).
    ///
    /// # Errors
    /// [`RangeError`].
    pub fn offline(&mut self, range: PfnRange) -> Result<Offline<'f, P>, RangeError> {
        self.check(range, RangeErrorKind::NotOnline, |section| {
            [(!section.online.load(Ordering::Acquire), RangeErrorKind::NotOnline)]
        })?;
        Ok(Offline {
            instance: self.instance(),
            range,
            not_isolated: range,
            live_frames: 0,
            recount: Recount { end: range.start(), frames: 0 },
            discard_from: range.start(),
            drained_part: None,
            window: None,
            undrained_part: None,
            parked: None,
        })
    }
}

impl<'f, P: Platform> Offline<'f, P> {
    /// Continues the request. Returns [`Progress::Ready`] once the range is offline, and
    /// [`Progress::Idle`] at each later poll. After [`Progress::Pending`], the request can be
    /// polled again or cancelled; until then, the memory that it has isolated stays isolated, unless
    /// an allocation would fail otherwise. Such an allocation takes back all that the request has
    /// isolated. At the next poll, the request calls [`Hooks::offline_cancelled`], and begins again.
    /// After [`Progress::Working`], the memory stays isolated: poll again soon. On another instance
    /// than its own, the request returns [`Progress::Pending`] with [`BlockerKind::Foreign`].
    ///
    /// Cost: up to the budget, O(sections) of the free memory and O(pageblocks) of the other
    /// memory.
    pub fn poll<M: Map>(
        &mut self,
        hotplug: &mut Hotplug<'f, P, M>,
        hooks: &mut dyn Hooks,
        budget: Budget,
    ) -> Progress<PfnRange> {
        if self.instance != hotplug.instance() {
            return Progress::Pending(BlockerKind::Foreign.at(self.range));
        }
        self.unpark(hooks);
        let mut poll = Poll { hotplug, hooks, allowance: budget.into() };
        let progress = self.advance(&mut poll);
        if matches!(progress, Progress::Pending(_)) {
            self.park();
        }
        progress
    }

    fn advance<M: Map>(&mut self, poll: &mut Poll<'_, 'f, P, M>) -> Progress<PfnRange> {
        while let Some(next) = self.not_isolated.chunks(SECTION_FRAMES as u64).next() {
            match self.isolate(next, poll) {
                ControlFlow::Continue(was_free) if poll.allowance.spend_window(next, was_free) => {}
                ControlFlow::Continue(_) => return Progress::Working,
                ControlFlow::Break(progress) => return progress,
            }
        }
        while let Some(window) = self.next_window() {
            if let ControlFlow::Break(progress) = self.drain(window, poll) {
                return progress;
            }
        }
        self.finish(poll.hotplug, poll.hooks)
    }

    /// Isolates `next`, the lowest window that is not isolated, and returns whether all of it was free.
    /// If too little memory is free elsewhere, has the kernel discard contents, or counts the frames in
    /// use again, because some may have been freed since they were counted: the next call then tries
    /// the window again.
    fn isolate<M: Map>(
        &mut self,
        next: PfnRange,
        poll: &mut Poll<'_, 'f, P, M>,
    ) -> ControlFlow<Progress<PfnRange>, bool> {
        match poll.hotplug.open_window(next, self.live_frames, poll.hooks) {
            Ok(window) => {
                let was_free = window.was_free();
                self.live_frames += window.live_frames();
                self.undrained_part = join(self.undrained_part.take(), window.into_isolation());
                self.not_isolated = self.not_isolated.split_at(next.end()).1;
                self.recount = Recount { end: self.range.start(), frames: 0 };
                return ControlFlow::Continue(was_free);
            }
            Err(Blocker { kind: BlockerKind::NotEnoughFree { live, free }, .. })
                if self.discard_from < next.end() =>
            {
                self.discard(next, live.saturating_sub(free), poll);
            }
            Err(blocker) => {
                let before = self.live_frames;
                if !self.count_again(&mut poll.allowance) {
                    return ControlFlow::Break(Progress::Working);
                }
                if self.live_frames >= before {
                    self.discard_from = self.range.start();
                    return ControlFlow::Break(Progress::Pending(blocker));
                }
            }
        }
        ControlFlow::Continue(false)
    }

    /// Has the kernel discard contents of the range up to `next`, so that `missing_frames` fewer have to
    /// move.
    fn discard<M: Map>(
        &mut self,
        next: PfnRange,
        missing_frames: u64,
        poll: &mut Poll<'_, 'f, P, M>,
    ) {
        let undiscarded = self.range.split_at(next.end()).0.split_at(self.discard_from).1;
        let blocks = undiscarded.chunks(PAGEBLOCK_FRAMES as u64);
        let mut freed_frames = 0;
        let mut count_freed = |block: PfnRange, frames| {
            freed_frames += if block.start() < next.start() { frames } else { 0 };
        };
        let Poll { hotplug, hooks, allowance } = poll;
        let last = hotplug.discard(blocks, missing_frames, *hooks, allowance, &mut count_freed);
        self.discard_from = last.map_or(next.end(), PfnRange::end);
        self.live_frames = self.live_frames.saturating_sub(freed_frames);
    }

    /// Drains a window of the isolated part.
    fn drain<M: Map>(
        &mut self,
        mut window: Window<'f, P>,
        poll: &mut Poll<'_, 'f, P, M>,
    ) -> ControlFlow<Progress<PfnRange>> {
        let progress = match poll.hotplug.drain(&mut window, poll.hooks, &mut poll.allowance) {
            DrainProgress::Done => {
                let was_free = window.was_free();
                let drained = window.into_isolation().mark_drained();
                let range = drained.range();
                self.drained_part = join(self.drained_part.take(), drained);
                // A free window was paid for when it was isolated.
                let has_budget = was_free || poll.allowance.spend_window(range, false);
                if has_budget || self.undrained_part.is_none() {
                    return ControlFlow::Continue(());
                }
                return ControlFlow::Break(Progress::Working);
            }
            DrainProgress::Working => Progress::Working,
            DrainProgress::Blocked(blocker) => Progress::Pending(blocker),
        };
        self.window = Some(window);
        ControlFlow::Break(progress)
    }

    /// Counts the frames in use of the isolated part again, as far as the budget allows. Returns
    /// whether all are counted; if not, the next call continues.
    fn count_again(&mut self, allowance: &mut Allowance) -> bool {
        if let Some(isolated) = &self.undrained_part {
            let uncounted = isolated.range().split_at(self.recount.end).1;
            for window in uncounted.chunks(SECTION_FRAMES as u64) {
                self.recount.frames += isolated.frames_in_use_in(window);
                self.recount.end = window.end();
                if !allowance.spend_window(window, false) && window.end() < uncounted.end() {
                    return false;
                }
            }
        }
        self.live_frames = self.recount.frames;
        self.recount = Recount { end: self.range.start(), frames: 0 };
        true
    }

    /// Returns the next window to drain.
    fn next_window(&mut self) -> Option<Window<'f, P>> {
        self.window.take().or_else(|| {
            let undrained = self.undrained_part.take()?;
            let first = undrained.range().chunks(SECTION_FRAMES as u64).next()?;
            let next = if undrained.was_free() { undrained.range() } else { first };
            let (window, above) = undrained.split_at(next.end());
            self.undrained_part = (!above.range().is_empty()).then_some(above);
            Some(Window::of(window))
        })
    }

    fn finish<M: Map>(
        &mut self,
        hotplug: &mut Hotplug<'f, P, M>,
        hooks: &mut dyn Hooks,
    ) -> Progress<PfnRange> {
        match self.drained_part.take().map(|drained| hotplug.take_offline_held(drained, hooks)) {
            None => Progress::Idle,
            Some(Ok(range)) => {
                hotplug.frames.call().clear_held(range);
                Progress::Ready(range)
            }
            // The memory was drained and is isolated, so no frame of it is in use, unless the
            // kernel has freed frames wrongly. Report the frames in use.
            Some(Err((drained, in_use))) => {
                self.drained_part = Some(drained);
                Progress::Pending(in_use)
            }
        }
    }

    /// Releases all memory that the request has isolated, so that the range stays online. If the
    /// request began on another instance, drops it, which releases the memory too, but calls no hook.
    ///
    /// Cost: O(pageblocks) that are isolated.
    pub fn cancel<M: Map>(self, hotplug: &mut Hotplug<'f, P, M>, hooks: &mut dyn Hooks) {
        let Some(mut request) = self.of_instance(hotplug.frames) else { return };
        request.unpark(hooks);
        for isolated in request.take_isolated().into_iter().flatten() {
            hotplug.release_cancelled(isolated, hooks);
        }
    }

    /// Lets an allocation that would fail take the isolated memory back. If too many requests wait,
    /// the memory stays isolated.
    fn park(&mut self) {
        let [undrained, window, drained] = self.take_isolated();
        let parts = [drained, window, undrained].into_iter().flatten();
        if let Some(isolated) = parts.reduce(Isolation::join) {
            match isolated.park() {
                Ok(parked) => self.parked = Some(parked),
                Err(isolated) => self.undrained_part = Some(isolated),
            }
        }
    }

    /// Takes the isolated memory again, which is still to be drained. If an allocation has taken it
    /// back, begins again.
    fn unpark(&mut self, hooks: &mut dyn Hooks) {
        let Some(parked) = self.parked.take() else { return };
        let range = parked.range();
        self.undrained_part = parked.unpark();
        if self.undrained_part.is_none() {
            self.not_isolated = self.range;
            self.live_frames = 0;
            self.discard_from = self.range.start();
            hooks.offline_cancelled(range);
        }
    }

    /// Returns the memory that an allocation may take back, or has taken back, until the next poll.
    /// For tests.
    #[cfg(feature = "internals")]
    #[doc(hidden)]
    pub fn parked_range(&self) -> Option<PfnRange> {
        self.parked.as_ref().map(ParkedIsolation::range)
    }

    /// Takes all memory that the request has isolated, the highest first.
    fn take_isolated(&mut self) -> [Option<Isolation<'f, P>>; 3] {
        let window = self.window.take().map(Window::into_isolation);
        [self.undrained_part.take(), window, self.drained_part.take()]
    }
}

impl<P: Platform> Drop for Offline<'_, P> {
    fn drop(&mut self) {
        let parked = self.parked.take().and_then(ParkedIsolation::unpark);
        let isolated = self.take_isolated().into_iter().flatten().chain(parked);
        isolated.for_each(Isolation::release);
    }
}

impl<P: Platform> Token for Offline<'_, P> {
    fn instance(&self) -> InstanceId {
        self.instance
    }
}

/// Joins a token and the token of the range right above it.
fn join<'f, P: Platform>(
    below: Option<Isolation<'f, P>>,
    above: Isolation<'f, P>,
) -> Option<Isolation<'f, P>> {
    Some(match below {
        Some(below) => below.join(above),
        None => above,
    })
}

impl<P: Platform> fmt::Debug for Offline<'_, P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Offline")
            .field("range", &self.range)
            .field("drained", &self.drained_part)
            .finish()
    }
}
