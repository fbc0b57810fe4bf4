//! The run of memory that a shrink has taken offline and not handed out yet.

use super::Shrink;
use crate::addr::PfnRange;
use crate::blocker::BlockerKind;
use crate::geometry::SECTION_FRAMES;
use crate::hotplug::poll::Poll;
use crate::hotplug::{Hotplug, Removal};
use crate::invariant::OrRecordViolation;
use crate::isolate::Isolation;
use crate::mapping::Map;
use crate::platform::Platform;

impl<'f, P: Platform> Shrink<'f, P> {
    /// Takes a drained window out of the allocator and adds it to `ready_run`.
    pub(super) fn add_to_ready<M: Map>(
        &mut self,
        window: Isolation<'f, P>,
        poll: &mut Poll<'_, 'f, P, M>,
    ) {
        match poll.hotplug.take_offline_held(window, poll.hooks) {
            Ok(range) => {
                let end =
                    if self.ready_run.is_empty() { range.end() } else { self.ready_run.end() };
                self.ready_run =
                    PfnRange::new(range.start(), end).or_record_violation().unwrap_or(range);
                self.frames_left -= range.frames();
            }
            Err((window, in_use)) => self.give_up(window, in_use, poll),
        }
    }

    /// Returns whether the device can take `ready_run` together with the next window.
    pub(super) fn joins_ready_run<M: Map>(
        &self,
        next: PfnRange,
        hotplug: &Hotplug<'f, P, M>,
    ) -> bool {
        let joined = PfnRange::new(next.start(), self.ready_run.end());
        self.ready_run.is_empty()
            || (next.end() == self.ready_run.start()
                && self.ready_run.frames() < self.max_run
                && joined.is_some_and(|joined| hotplug.is_announced(joined)))
    }

    /// Unmaps the upper part of `ready_run` that the platform can take at one time, and returns it. If it
    /// cannot be removed, puts it online again.
    pub(super) fn hand_out_ready_run<M: Map>(
        &mut self,
        poll: &mut Poll<'_, 'f, P, M>,
    ) -> Option<Removal<'f, P>> {
        let top = self.split_off_top();
        let blocker = match poll.hotplug.descriptors_of_others(top, top) {
            // `top` holds descriptors of memory whose removal was abandoned, so that memory stays.
            Some(range) => BlockerKind::Metadata.at(range),
            None => match poll.hotplug.unmap(top, true) {
                Ok(removal) => return Some(removal),
                Err(_) => BlockerKind::NoTables.at(top),
            },
        };
        poll.hotplug.bring_back_online(top, poll.hooks);
        self.frames_left += top.frames();
        self.blocker.get_or_insert(blocker);
        None
    }

    /// Takes at most `max_run` frames off the upper end of `ready_run`. If possible, cuts at a section
    /// boundary: a section may hold its own descriptors, and is then best removed as a whole.
    fn split_off_top(&mut self) -> PfnRange {
        let excess = self.ready_run.frames().saturating_sub(self.max_run);
        let start = self.ready_run.start();
        let cut = start.checked_add(excess).unwrap_or(start);
        let aligned = cut.align_up(self.unit.max(SECTION_FRAMES as u64));
        let cut = if excess > 0 && aligned < self.ready_run.end() { aligned } else { cut };
        let (still_ready, top) = self.ready_run.split_at(cut);
        self.ready_run = still_ready;
        top
    }
}
