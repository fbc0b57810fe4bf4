//! Adds memory to the engine and then puts it online, with neighbouring LMBs of one node as one
//! range.

use super::taken::FormerState;
use super::{Flow, Machine, OpenRequest, Step, region};
use crate::connectors::Connectors;
use crate::description::Change;
use crate::outcome::{Error, FinalState};
use crate::table::{Group, Stretch, Table};
use hotmem::{AddError, Map, OnlineType, PfnRange, Platform, RangeError, RangeErrorKind, State};

impl<'f, P: Platform> OpenRequest<'f, P> {
    /// Adds the memory of those taken LMBs that are not present in the engine yet.
    pub(super) fn add_memory<M: Map, C: Connectors + ?Sized>(
        &mut self,
        table: &mut Table<'_>,
        machine: &mut Machine<'_, 'f, P, M, C>,
        steps_left: &mut u32,
    ) -> Flow {
        let Some(position) = self.next(table, |group| group.taken) else {
            self.resume_adding = None;
            self.go_to(Step::Online);
            return Flow::Continue;
        };
        self.cursor = position;
        let limit = (*steps_left).min(self.max_range_lmbs);
        let stretch = table.stretch(position, |group| group.taken, limit);
        let (run, state) = machine.hotplug.state_at(stretch.range.start(), stretch.range.end());
        if !matches!(state, State::Absent | State::Unknown) {
            self.cursor += table.lmbs_in(run).max(1);
            return Flow::Continue;
        }
        let absent = match table.lmbs_in(run) {
            // A part of the LMB is present, so the engine will refuse to add it.
            0 => table.first_of(&stretch),
            lmbs => table.part_of(&stretch, lmbs),
        };
        match region::add(machine.hotplug, table, stretch.first_position, absent, stretch.node) {
            Ok(added) => {
                let lmbs = table.lmbs_in(added.range);
                self.cursor += lmbs;
                self.max_range_lmbs = u32::MAX;
                *steps_left = steps_left.saturating_sub(lmbs);
                if self.undo_reason.is_none() {
                    self.count_range(added.range, added.node);
                    self.summary.misplaced += if added.is_on_other_node { lmbs } else { 0 };
                }
            }
            Err(error) => return self.not_added(error, &stretch, absent, table, machine),
        }
        if *steps_left == 0 { Flow::Working } else { Flow::Continue }
    }

    /// Handles a refusal of the engine: tries a smaller range, or first puts added memory online for
    /// its page tables, or gives up the LMB.
    fn not_added<M: Map, C: Connectors + ?Sized>(
        &mut self,
        error: Error,
        stretch: &Stretch,
        range: PfnRange,
        table: &mut Table<'_>,
        machine: &mut Machine<'_, 'f, P, M, C>,
    ) -> Flow {
        let lmbs = table.lmbs_in(range);
        match error {
            Error::Add(
                AddError::Range(RangeError { range: in_the_way, kind: RangeErrorKind::Present })
                | AddError::Range(RangeError { range: in_the_way, kind: RangeErrorKind::Held }),
            ) => {
                let below = PfnRange::new(range.start(), in_the_way.start());
                let lmbs_below = below.map_or(0, |below| table.lmbs_in(below));
                if lmbs_below > 0 {
                    self.max_range_lmbs = lmbs_below;
                    return Flow::Continue;
                }
            }
            // A smaller range needs fewer words and page tables.
            _ if lmbs > 1 => {
                self.max_range_lmbs = lmbs / 2;
                return Flow::Continue;
            }
            // Memory that this request has added has frames for words and page tables, once it is
            // online.
            Error::Add(AddError::NoTables { .. } | AddError::NoMetadata(_))
                if self.resume_adding != Some(self.cursor) =>
            {
                let resume = self.cursor;
                self.go_to(Step::Online);
                self.resume_adding = Some(resume);
                return Flow::Continue;
            }
            _ => {}
        }
        self.max_range_lmbs = u32::MAX;
        self.resume_adding = None;
        if self.undo_reason.is_some() {
            self.cursor = stretch.first_position + 1;
            // The partition has its connector again, so `Table::adopt` can try again.
            self.report_refused_lmb(
                FinalState::Unrestored,
                error,
                stretch.first_position,
                table,
                machine,
            );
            table.clear_taken(stretch.first_position);
        } else {
            self.evict(error, stretch.first_position, table, machine);
        }
        Flow::Continue
    }

    /// Puts the offline LMBs among the taken ones online: added LMBs as configured, LMBs that stay
    /// after a failed removal as they were online before.
    pub(super) fn bring_online<M: Map, C: Connectors + ?Sized>(
        &mut self,
        table: &mut Table<'_>,
        machine: &mut Machine<'_, 'f, P, M, C>,
        steps_left: &mut u32,
    ) -> Flow {
        let undoing = self.undo_reason.is_some();
        let next =
            self.next(
                table,
                |group| if undoing { group.taken & group.was_online } else { group.taken },
            );
        let Some(position) = next else {
            match self.resume_adding {
                Some(resume) => (self.step, self.cursor) = (Step::Add, resume),
                None if undoing => self.step = Step::ReportFailure,
                None => self.go_on_with(table, Step::Update, Step::Acquire),
            }
            return Flow::Continue;
        };
        self.cursor = position;
        let former = table.former_state(position);
        let limit =
            if former == FormerState::Mixed { 1 } else { (*steps_left).min(self.max_range_lmbs) };
        let same_state = |group: &Group| if undoing { former.of(group) } else { group.taken };
        let stretch = table.stretch(position, same_state, limit);
        let online_type = if undoing { Some(former.online_type()) } else { self.request.online };
        let announced = region::region_at(machine.hotplug, stretch.range.start())
            .map_or(stretch.range, |all| all.intersection(stretch.range));
        let (run, state) = machine.hotplug.state_at(announced.start(), announced.end());
        let lmbs = table.lmbs_in(run);
        if lmbs > 0 && is_online_as_requested(online_type, state) {
            self.cursor += lmbs;
            return Flow::Continue;
        }
        if matches!(state, State::Absent | State::Unknown) && self.resume_adding.is_some() {
            // Put online only the memory below the position at which adding has stopped.
            self.cursor = table.lmbs;
            return Flow::Continue;
        }
        let lmbs = lmbs.max(1);
        match machine.hotplug.online(table.part_of(&stretch, lmbs), online_type, machine.hooks) {
            Ok(()) => {
                self.cursor += lmbs;
                self.max_range_lmbs = u32::MAX;
                *steps_left = steps_left.saturating_sub(lmbs);
                if former == FormerState::Mixed {
                    self.check_zones(position, table, machine);
                }
            }
            Err(_) if lmbs > 1 => self.max_range_lmbs = lmbs / 2,
            Err(error) => {
                self.max_range_lmbs = u32::MAX;
                if undoing {
                    self.cursor += 1;
                    self.report_refused_lmb(
                        FinalState::Unrestored,
                        Error::Online(error),
                        position,
                        table,
                        machine,
                    );
                } else {
                    self.evict(Error::Online(error), position, table, machine);
                }
            }
        }
        if *steps_left == 0 { Flow::Working } else { Flow::Continue }
    }

    /// Puts an LMB that could not be released online again as before.
    pub(super) fn online_again<M: Map, C: Connectors + ?Sized>(
        &mut self,
        position: u32,
        table: &mut Table<'_>,
        machine: &mut Machine<'_, 'f, P, M, C>,
    ) {
        let former = table.former_state(position);
        let range = table.lmb(position).range;
        match machine.hotplug.online(range, former.online_type(), machine.hooks) {
            Ok(()) if former == FormerState::Mixed => self.check_zones(position, table, machine),
            Ok(()) => {}
            Err(error) => {
                self.report_refused_lmb(
                    FinalState::Unrestored,
                    Error::Online(error),
                    position,
                    table,
                    machine,
                );
            }
        }
    }

    /// Reports an LMB that was online in two zones and is in one zone now, because its memory was
    /// removed meanwhile.
    fn check_zones<M: Map, C: Connectors + ?Sized>(
        &mut self,
        position: u32,
        table: &mut Table<'_>,
        machine: &mut Machine<'_, 'f, P, M, C>,
    ) {
        let lmb = table.lmb(position);
        if machine.hotplug.state_at(lmb.range.start(), lmb.range.end()).0 == lmb.range {
            let error = table.connector(position).map_or_else(|error| error, Error::Zones);
            self.report_refused_lmb(FinalState::Unrestored, error, position, table, machine);
        }
    }

    /// Releases an acquired LMB that the engine does not accept. Then the request either continues
    /// without the LMB, or ends.
    fn evict<M: Map, C: Connectors + ?Sized>(
        &mut self,
        error: Error,
        position: u32,
        table: &mut Table<'_>,
        machine: &mut Machine<'_, 'f, P, M, C>,
    ) {
        debug_assert_eq!(self.request.change, Change::Add);
        self.skip_or_fail(error, FinalState::AsItWas, position, table, machine);
        if self.undo_reason.is_none() {
            self.evicting_lmb = Some((position, self.step));
            self.step = Step::RemoveAndRelease;
        }
    }
}

/// Returns whether memory in this state is online as requested, even if another caller put it
/// online.
fn is_online_as_requested(online_type: Option<OnlineType>, state: State) -> bool {
    match online_type {
        Some(OnlineType::Kernel) => state == State::Online,
        Some(OnlineType::Movable) => state == State::OnlineMovable,
        Some(OnlineType::AsBefore) => false,
        Some(OnlineType::Online | OnlineType::Offline) | None => {
            matches!(state, State::Online | State::OnlineMovable)
        }
    }
}
