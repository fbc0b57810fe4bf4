//! A shrink that is pending: it keeps a unit isolated, and tries the whole range again.

use super::Shrink;
use super::untried::Untried;
use crate::addr::{Pfn, PfnRange};
use crate::blocker::BlockerKind;
use crate::hooks::Hooks;
use crate::hotplug::drain::{ParkedWindow, Window};
use crate::hotplug::poll::Poll;
use crate::mapping::Map;
use crate::platform::Platform;

impl<'f, P: Platform> Shrink<'f, P> {
    /// Takes the unit back that the shrink has isolated while it was pending, unless an allocation has
    /// taken it. Either way, the unit is still to be tried.
    pub(super) fn unpark(&mut self, hooks: &mut dyn Hooks) {
        match self.parked_window.take().map(ParkedWindow::unpark) {
            Some(Ok(window)) => self.window = Some(window),
            Some(Err(range)) => hooks.offline_cancelled(range),
            None => {}
        }
    }

    /// Returns the memory that an allocation may take back, or has taken back, until the next poll.
    /// For tests.
    #[cfg(feature = "internals")]
    #[doc(hidden)]
    pub fn parked_range(&self) -> Option<PfnRange> {
        self.parked_window.as_ref().map(ParkedWindow::range)
    }

    /// Makes the next poll try the whole range again. Isolates a unit until then, unless the shrink
    /// is pending because of a veto, or because the kernel may need the unit's memory.
    pub(super) fn start_again<M: Map>(&mut self, poll: &mut Poll<'_, 'f, P, M>) {
        let kind = self.blocker.take().map(|blocker| blocker.kind);
        if !matches!(kind, None | Some(BlockerKind::Veto(_) | BlockerKind::NotEnoughFree { .. })) {
            // The highest unit below the last one that was kept, or the highest of all.
            let highest_unit_of = |range| {
                let mut untried = Untried::all(range, self.unit);
                untried.use_single_units_above(Pfn::ZERO);
                untried.next_window(poll.hotplug, self.frames_left, &mut None)
            };
            let below_last = self.range.split_at(self.last_kept_unit).0;
            let next = highest_unit_of(below_last).or_else(|| highest_unit_of(self.range));
            self.last_kept_unit = next.map_or(Pfn::LIMIT, PfnRange::start);
            self.parked_window = next.and_then(|unit| {
                let window = poll.hotplug.open_window(unit, 0, poll.hooks).ok()?;
                // If too many shrinks wait, this one isolates nothing.
                let kept = |window: Window<'f, P>| {
                    poll.hotplug.release_cancelled(window.into_isolation(), poll.hooks);
                };
                window.park().map_err(kept).ok()
            });
        }
        self.untried = Untried::all(self.range, self.unit);
        self.discarded_above = Pfn::LIMIT;
    }
}
