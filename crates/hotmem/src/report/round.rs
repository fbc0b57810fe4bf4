//! What to do next: wait, look round, sleep.
//!
//! ```text
//! resting ──rung──▶ waiting ──time──▶ round: batch, batch, … ──end──▶ waiting, if something is
//!    ▲                                                                 too young
//!    └───────────────────────── nothing is left ──────────────────────┘
//! ```
//! A pageblock is *seen* in one round and reported in the next, a dwell time later, if nobody has
//! used it meanwhile: whoever does overwrites the mark in its counter, so nobody pays for it.

use super::{Batch, Reporter, Step};
use crate::platform::Platform;
use crate::sync::mutant;
use core::time::Duration;

/// Sections that a step looks at.
const SECTIONS_A_STEP: usize = 64;

/// Where a reporter stands.
#[derive(Debug)]
pub(super) enum Phase {
    /// It is idle, or was until a moment ago.
    Resting,
    /// It looks again then.
    Waiting(Duration),
    /// It goes through everything that is free and not reported.
    Round(Round),
}

/// How far a round has come.
#[derive(Debug, Default)]
pub(super) struct Round {
    pub(super) cursor: Cursor,
    /// Section and pageblocks of it that were to go, but had no room in the last batch.
    pub(super) rest: Option<(usize, usize, u64)>,
    /// Something was too young, or taken by others while it was looked at.
    pub(super) too_young: bool,
}

/// Sections in the order of a round: regions upwards, and in each downwards, because what is
/// allocated next comes from below.
#[derive(Clone, Copy, Debug)]
pub(super) struct Cursor {
    pub(super) slot: usize,
    /// All from here up are done.
    pub(super) done_from: usize,
}

impl Default for Cursor {
    fn default() -> Cursor {
        Cursor { slot: 0, done_from: usize::MAX }
    }
}

impl<P: Platform> Reporter<'_, P> {
    pub(super) fn go_on(&mut self, now: Duration) -> Step {
        if self.frames.bell().is_asleep() {
            self.phase = Phase::Resting;
            return Step::Idle;
        }
        loop {
            match core::mem::replace(&mut self.phase, Phase::Resting) {
                Phase::Resting => {
                    self.hints_seen = false;
                    self.phase = Phase::Waiting(now.saturating_add(self.settings.delay));
                }
                Phase::Waiting(until) if now < until => {
                    self.phase = Phase::Waiting(until);
                    return Step::WaitUntil(until);
                }
                Phase::Waiting(_) if self.waits_in_all() < self.settings.threshold_blocks() => {
                    return self.fall_asleep();
                }
                Phase::Waiting(_) => self.phase = Phase::Round(Round::default()),
                Phase::Round(round) => return self.look_round(round, now),
            }
        }
    }

    fn look_round(&mut self, mut round: Round, now: Duration) -> Step {
        let room = self.settings.most_blocks().saturating_sub(self.out);
        if room == 0 {
            self.phase = Phase::Round(round);
            return Step::OutOfRoom;
        }
        if now < self.not_before {
            self.phase = Phase::Round(round);
            return Step::WaitUntil(self.not_before);
        }
        let mut room = room.min(self.settings.most_at_once());
        let mut batch = Batch::new(self.frames.id(), self.frames.bell().generation());
        for _ in 0..SECTIONS_A_STEP {
            if let Some(rest) = round.rest.take() {
                self.take(rest, &mut batch, &mut room, &mut round);
                if round.rest.is_some() {
                    break;
                }
            }
            let Some((slot, index)) = self.next_section(&mut round.cursor) else {
                if batch.ranges().is_empty() {
                    return self.end_round(&round, now);
                }
                break;
            };
            let ripe = self.ripe_in(slot, index, &mut round);
            if ripe != 0 {
                round.rest = Some((slot, index, ripe));
            }
        }
        self.phase = Phase::Round(round);
        if batch.ranges().is_empty() {
            return Step::Again;
        }
        self.send(batch, now)
    }

    fn send(&mut self, batch: Batch, now: Duration) -> Step {
        let blocks = batch.blocks();
        self.out += blocks;
        self.done.batches += 1;
        let start = self.not_before.max(now);
        self.not_before = start.saturating_add(self.settings.time_for(blocks));
        Step::Send(batch)
    }

    fn end_round(&mut self, round: &Round, now: Duration) -> Step {
        // What stays split as a CPU's hint though all of it is free is the last to be found.
        let from_hints = !self.hints_seen && self.frames.coalesce_all_hinted();
        self.hints_seen = true;
        if round.too_young || from_hints {
            let until = now.saturating_add(self.settings.dwell);
            self.phase = Phase::Waiting(until);
            return if now < until { Step::WaitUntil(until) } else { Step::Again };
        }
        self.fall_asleep()
    }

    /// Nothing is left but what is kept back for a reason.
    fn fall_asleep(&mut self) -> Step {
        let bell = self.frames.bell();
        bell.sleep();
        self.phase = Phase::Resting;
        // What became free while it was awake rang no bell.
        let is_new_work_there = !mutant!("sleep without a last look") && self.is_new_work_there();
        if is_new_work_there && bell.wake() { Step::Again } else { Step::Idle }
    }

    /// Something has changed that may make more of what is free worth reporting.
    pub(super) fn look_again(&mut self) {
        if self.is_on() && self.frames.bell().wake() {
            self.phase = Phase::Resting;
        } else if let Phase::Round(round) = &mut self.phase {
            // It may be where the round has been already.
            round.too_young = true;
        }
    }
}
