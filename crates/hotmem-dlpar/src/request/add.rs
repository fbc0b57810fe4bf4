//! Memory comes: neighbours of one node as one range, first all of it added, then put online.

use super::{Change, Error, Flow, Machine, Open, Step, region};
use crate::connectors::Connectors;
use crate::table::{Stretch, Table};
use hotmem::{AddError, Hooks, OnlineType, PfnRange, Platform, State};

impl<'f, P: Platform> Open<'f, P> {
    /// What is in hand and not yet in the engine is added.
    pub(super) fn add_memory<H: Hooks, C: Connectors + ?Sized>(
        &mut self,
        table: &mut Table<'_>,
        machine: &mut Machine<'_, 'f, P, H, C>,
        left: &mut u32,
    ) -> Flow {
        let Some(stretch) = self.next_stretch(table, |group| group.taken, *left) else {
            self.resume_adding = None;
            self.go_to(Step::Online);
            return Flow::On;
        };
        let (run, state) = machine.hotplug.state_at(stretch.range.start(), stretch.range.end());
        if !matches!(state, State::Absent | State::Unknown) {
            self.cursor += table.lmbs_in(run).max(1);
            return Flow::On;
        }
        let absent = match table.lmbs_in(run) {
            // A part of the LMB is there: the engine will say so.
            0 => table.first_of(&stretch),
            lmbs => table.part_of(&stretch, lmbs),
        };
        let added = region::place(machine.hotplug, table, stretch.first, absent)
            .map_err(Error::Announce)
            .and_then(|place| {
                let addition = machine.hotplug.prepare_add(place.range, machine.hooks);
                addition.map(|addition| (place, addition)).map_err(Error::Add)
            });
        match added {
            Ok((place, addition)) => {
                // Prepared on this machine, so this cannot fail.
                let _ = machine.hotplug.commit_add(addition, machine.hooks);
                let lmbs = table.lmbs_in(place.range);
                self.cursor += lmbs;
                self.at_most = u32::MAX;
                *left = left.saturating_sub(lmbs);
                if self.undoing.is_none() {
                    self.count_range(place.range, stretch.node);
                    self.summary.misplaced += if place.misplaced { lmbs } else { 0 };
                }
            }
            Err(error) => return self.not_added(error, &stretch, absent, table, machine),
        }
        if *left == 0 { Flow::Working } else { Flow::On }
    }

    /// The engine refuses a range: less of it is tried, or something is done about it.
    fn not_added<H: Hooks, C: Connectors + ?Sized>(
        &mut self,
        error: Error,
        stretch: &Stretch,
        range: PfnRange,
        table: &mut Table<'_>,
        machine: &mut Machine<'_, 'f, P, H, C>,
    ) -> Flow {
        let lmbs = table.lmbs_in(range);
        match error {
            Error::Add(AddError::Present(in_the_way) | AddError::Held(in_the_way)) => {
                let before = PfnRange::new(range.start(), in_the_way.start());
                let before = before.map_or(0, |before| table.lmbs_in(before));
                if before > 0 {
                    self.at_most = before;
                    return Flow::On;
                }
            }
            // Less memory needs fewer page tables.
            _ if lmbs > 1 => {
                self.at_most = lmbs / 2;
                return Flow::On;
            }
            // Memory that was added a moment ago has room for them.
            Error::Add(AddError::NoTables { .. }) if self.resume_adding != Some(self.cursor) => {
                let resume = self.cursor;
                self.go_to(Step::Online);
                self.resume_adding = Some(resume);
                return Flow::On;
            }
            _ => {}
        }
        self.at_most = u32::MAX;
        self.resume_adding = None;
        if self.undoing.is_some() {
            self.cursor = stretch.first + 1;
            self.lose(stretch.first, table);
        } else {
            self.evict(error, stretch.first, table, machine);
        }
        Flow::On
    }

    /// What is in hand and offline is put online: what came for what is configured, what went for
    /// what it was online for.
    pub(super) fn bring_online<H: Hooks, C: Connectors + ?Sized>(
        &mut self,
        table: &mut Table<'_>,
        machine: &mut Machine<'_, 'f, P, H, C>,
        left: &mut u32,
    ) -> Flow {
        let undoing = self.undoing.is_some();
        let next =
            table.next(
                self.cursor,
                |group| {
                    if undoing { group.taken & group.online } else { group.taken }
                },
            );
        let Some(position) = next else {
            match self.resume_adding {
                Some(resume) => (self.step, self.cursor) = (Step::Add, resume),
                None if undoing => self.step = Step::Done,
                None => self.go_on_with(table, Step::Update, Step::Acquire),
            }
            return Flow::On;
        };
        self.cursor = position;
        let movable = {
            let (group, bit) = table.group_of(position);
            group.movable >> bit & 1 != 0
        };
        let limit = (*left).min(self.at_most);
        let stretch = table.stretch(
            position,
            |group| match (undoing, movable) {
                (false, _) => group.taken,
                (true, true) => group.taken & group.online & group.movable,
                (true, false) => group.taken & group.online & !group.movable,
            },
            limit,
        );
        let Some(stretch) = stretch else { return Flow::On };
        let within = region::region_at(machine.hotplug, stretch.range.start())
            .map_or(stretch.range, |(_, all)| all.intersection(stretch.range));
        let (run, state) = machine.hotplug.state_at(within.start(), within.end());
        if state != State::Offline {
            if matches!(state, State::Absent | State::Unknown) && self.resume_adding.is_some() {
                // As far as adding had come.
                self.cursor = table.lmbs;
                return Flow::On;
            }
            self.cursor += table.lmbs_in(run).max(1);
            return Flow::On;
        }
        let kind = match (undoing, movable) {
            (false, _) => self.request.online,
            (true, true) => OnlineType::Movable,
            (true, false) => OnlineType::AsBefore,
        };
        let lmbs = table.lmbs_in(run).max(1);
        let range = table.part_of(&stretch, lmbs);
        match machine.hotplug.online(range, kind, machine.hooks) {
            Ok(()) => {
                self.cursor += lmbs;
                self.at_most = u32::MAX;
                *left = left.saturating_sub(lmbs);
            }
            Err(_) if lmbs > 1 => self.at_most = lmbs / 2,
            Err(error) => {
                self.at_most = u32::MAX;
                if undoing {
                    self.cursor += 1;
                    self.summary.unrestored += 1;
                } else {
                    self.evict(Error::Online(error), position, table, machine);
                }
            }
        }
        if *left == 0 { Flow::Working } else { Flow::On }
    }

    /// Neighbours that `which` has, from the cursor on.
    pub(super) fn next_stretch(
        &mut self,
        table: &Table<'_>,
        which: impl Fn(&crate::table::Group) -> u64 + Copy,
        limit: u32,
    ) -> Option<Stretch> {
        self.cursor = table.next(self.cursor, which)?;
        table.stretch(self.cursor, which, limit.min(self.at_most))
    }

    /// An acquired LMB has no place in the engine: it is given back, and the request goes on
    /// without it or ends.
    fn evict<H: Hooks, C: Connectors + ?Sized>(
        &mut self,
        error: Error,
        position: u32,
        table: &mut Table<'_>,
        machine: &mut Machine<'_, 'f, P, H, C>,
    ) {
        debug_assert_eq!(self.request.change, Change::Add);
        self.skip_or_fail(error, table, machine);
        if self.undoing.is_none() {
            self.evicting = Some((position, self.step));
            self.step = Step::Release;
        }
    }
}
