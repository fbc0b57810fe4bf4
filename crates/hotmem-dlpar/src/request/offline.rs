//! Takes memory offline. Neighbouring LMBs are taken offline as one range, as many of them as
//! possible.

use super::offline_stretch::OfflineStretch;
use super::taken::FormerState;
use super::{Flow, Machine, OpenRequest, Step, region};
use crate::connectors::Connectors;
use crate::description::LmbSelection;
use crate::outcome::{Error, FinalState, Wait};
use crate::table::{Stretch, Table};
use hotmem::{Blocker, Budget, Map, PfnRange, Platform, Progress, State};

impl<'f, P: Platform> OpenRequest<'f, P> {
    /// Takes candidates offline until enough are offline. While a request is undone, takes added
    /// LMBs offline.
    pub(super) fn take_offline<M: Map, C: Connectors + ?Sized>(
        &mut self,
        table: &mut Table<'_>,
        machine: &mut Machine<'_, 'f, P, M, C>,
        steps_left: &mut u32,
    ) -> Flow {
        if let Some(offlining) = self.going_offline.take() {
            return self.continue_offlining(offlining, table, machine, steps_left);
        }
        let undoing = self.undo_reason.is_some();
        let first = match undoing {
            true => self.next(table, |group| group.taken),
            false if self.candidates.are_taken(table) => None,
            false => self.candidates.next(table),
        };
        let Some(first) = first else {
            if !undoing && !self.candidates.are_taken(table) {
                let error = self.candidates.not_enough(table);
                self.fail(error, table, machine);
            } else if undoing || matches!(self.request.selection, LmbSelection::Count(_)) {
                self.go_to(Step::RemoveAndRelease);
            } else {
                self.go_to(Step::CheckRemoval);
            }
            return Flow::Continue;
        };
        if let Some((position, error)) = self.blocked_lmb
            && position == first
        {
            self.blocked_lmb = None;
            self.skip_blocked(error, first, table, machine);
            return Flow::Continue;
        }
        let blocked = self.blocked_lmb.map(|(position, _)| position);
        let max_lmbs = match (undoing, blocked) {
            (true, None) => u32::MAX,
            (true, Some(blocked)) => blocked - first,
            (false, blocked) => {
                let end = blocked.unwrap_or(self.span().end);
                self.candidates.missing(table).min(end - first)
            }
        };
        // Take at least the rest of a section offline together, however small the budget. The
        // section's metadata may lie in its first LMB, and can be freed only with its last LMB.
        let budget_lmbs = (*steps_left).max(table.lmbs_to_section_end(first));
        let limit = max_lmbs.min(budget_lmbs).min(self.max_range_lmbs);
        let stretch = if undoing {
            table.stretch(first, |group| group.taken, limit)
        } else {
            table.stretch(first, self.candidates.of_group(), limit)
        };
        *steps_left -= 1;
        match self.start_offlining(&stretch, table, machine) {
            Ok(None) => {}
            Ok(Some(offlining)) => self.going_offline = Some(offlining),
            Err(error) => self.record_blocked(error, first, table, machine),
        }
        Flow::Continue
    }

    /// Begins to take offline as much of a stretch as is in one state and one announced range.
    /// Returns `None` if there was nothing to do for that part.
    fn start_offlining<M: Map, C: ?Sized>(
        &mut self,
        stretch: &Stretch,
        table: &mut Table<'_>,
        machine: &mut Machine<'_, 'f, P, M, C>,
    ) -> Result<Option<OfflineStretch<'f, P>>, Error> {
        let first = stretch.first_position;
        let index = table.connector(first)?;
        let region = region::region_at(machine.hotplug, stretch.range.start());
        let announced = region.map_or(PfnRange::EMPTY, |all| all.intersection(stretch.range));
        let (run, state) = machine.hotplug.state_at(announced.start(), announced.end());
        let lmbs = table.lmbs_in(run);
        match state {
            State::Absent | State::Unknown if self.undo_reason.is_some() => {
                self.cursor = first + lmbs.max(1);
                return Ok(None);
            }
            State::Absent | State::Device | State::Unknown => {
                return Err(Error::NotPresent(index));
            }
            State::Offline | State::Removing if lmbs == 0 => return Err(Error::Mixed(index)),
            State::Offline | State::Removing => {
                self.record_offline(first, lmbs, FormerState::Offline, table);
                return Ok(None);
            }
            State::Online | State::OnlineMovable => {}
        }
        // An LMB in two zones counts as online if all of it is.
        let (range, former) = match (lmbs, state) {
            (0, _) => (table.first_of(stretch), FormerState::Mixed),
            (_, State::OnlineMovable) => (table.part_of(stretch, lmbs), FormerState::Movable),
            _ => (table.part_of(stretch, lmbs), FormerState::Kernel),
        };
        let offline = machine.hotplug.offline(range).map_err(|error| match lmbs {
            0 => Error::Mixed(index),
            _ => Error::Offline(error),
        })?;
        Ok(Some(OfflineStretch {
            first_position: first,
            lmbs: lmbs.max(1),
            former_state: former,
            offline,
        }))
    }

    fn continue_offlining<M: Map, C: Connectors + ?Sized>(
        &mut self,
        mut offlining: OfflineStretch<'f, P>,
        table: &mut Table<'_>,
        machine: &mut Machine<'_, 'f, P, M, C>,
        steps_left: &mut u32,
    ) -> Flow {
        let pageblocks = table.lmb_size.frames() / hotmem::geometry::PAGEBLOCK_FRAMES as u64;
        let budget = Budget { pageblocks: pageblocks.saturating_mul(u64::from(*steps_left)) };
        match offlining.offline.poll(machine.hotplug, machine.hooks, budget) {
            Progress::Ready(_) | Progress::Idle => {
                let OfflineStretch { first_position: first, lmbs, former_state: former, .. } =
                    offlining;
                self.record_offline(first, lmbs, former, table);
                *steps_left = steps_left.saturating_sub(lmbs);
                if *steps_left == 0 { Flow::Working } else { Flow::Continue }
            }
            Progress::Working => {
                self.going_offline = Some(offlining);
                Flow::Working
            }
            Progress::Pending(blocker) => {
                let by_count = matches!(self.request.selection, LmbSelection::Count(_))
                    && self.undo_reason.is_none();
                let skips_wait = self.undo_reason.is_some() && self.skips_waiting();
                if Error::Blocked(blocker).is_temporary() && !by_count && !skips_wait {
                    self.going_offline = Some(offlining);
                    return Flow::Wait(Wait::Memory(blocker));
                }
                self.split_blocked_range(offlining, blocker, table, machine);
                Flow::Continue
            }
        }
    }

    /// Splits a range in which one LMB cannot go offline.
    fn split_blocked_range<M: Map, C: Connectors + ?Sized>(
        &mut self,
        offlining: OfflineStretch<'f, P>,
        blocker: Blocker,
        table: &mut Table<'_>,
        machine: &mut Machine<'_, 'f, P, M, C>,
    ) {
        let (first, last) =
            (offlining.first_position, offlining.first_position + offlining.lmbs - 1);
        offlining.cancel(machine);
        let refused_lmbs = table.lmbs_in(blocker.range).min(last - first + 1);
        if refused_lmbs > 1
            && (self.undo_reason.is_some()
                || matches!(self.request.selection, LmbSelection::Count(_)))
        {
            // The engine does not say which of these LMBs cannot go offline.
            self.max_range_lmbs = refused_lmbs / 2;
            return;
        }
        let start = table.lmb(first).range.start();
        let before = PfnRange::new(start, blocker.range.start());
        let nth = before.map_or(0, |before| table.lmbs_in(before));
        let blocked = first.saturating_add(nth).min(last);
        self.record_blocked(Error::Blocked(blocker), blocked, table, machine);
    }

    /// Records that the LMB at `position` cannot go offline. The LMBs below it go offline before
    /// this LMB is skipped.
    fn record_blocked<M: Map, C: Connectors + ?Sized>(
        &mut self,
        error: Error,
        position: u32,
        table: &mut Table<'_>,
        machine: &mut Machine<'_, 'f, P, M, C>,
    ) {
        if self.undo_reason.is_some() || matches!(self.request.selection, LmbSelection::Count(_)) {
            self.blocked_lmb = Some((position, error));
        } else {
            self.skip_or_fail(error, FinalState::AsItWas, position, table, machine);
        }
    }

    /// Skips an LMB that cannot go offline. If the request is being undone, the LMB stays assigned.
    fn skip_blocked<M: Map, C: Connectors + ?Sized>(
        &mut self,
        error: Error,
        position: u32,
        table: &mut Table<'_>,
        machine: &mut Machine<'_, 'f, P, M, C>,
    ) {
        if self.undo_reason.is_none() {
            self.candidates.set_tried_below(position + 1);
            self.skip_or_fail(error, FinalState::AsItWas, position, table, machine);
            return;
        }
        self.cursor = position + 1;
        self.report_refused_lmb(FinalState::Unrestored, error, position, table, machine);
        table.assign(position, true);
        table.clear_taken(position);
    }

    /// Records that LMBs are offline, and takes them if the request removes LMBs.
    fn record_offline(
        &mut self,
        first: u32,
        lmbs: u32,
        former: FormerState,
        table: &mut Table<'_>,
    ) {
        self.max_range_lmbs = u32::MAX;
        if self.undo_reason.is_some() {
            self.cursor = first + lmbs;
            return;
        }
        self.candidates.set_tried_below(first + lmbs);
        for position in first..first + lmbs {
            table.take(position);
            table.record_former_state(position, former);
        }
    }
}
