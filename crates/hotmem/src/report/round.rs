//! Decides what the reporter does next: wait, count, make a round, sleep.
//!
//! ```text
//! resting ──woken─▶ waiting ──time──▶ counting ──enough──▶ round: batch, batch, … ──end──▶ waiting,
//!    ▲                                   │                                │        if something is
//!    │                                   └── too little ──┐               │              too young
//!    └───── nothing became free ─── last check ◀──────────┴── nothing is left
//! ```
//! A round marks a free pageblock as *seen*. The next round, after the dwell time, reports it if it
//! was not used meanwhile: each use overwrites the mark in the block state, at no extra cost.
//!
//! A step reads few sections (`phase.rs`), however large the machine is. In the next step, the
//! count, the round or the last check continues where it stopped.

use super::phase::{Headroom, Phase, Round, Spare, Spent, StepBudget, Survey};
use super::{Batch, Reporter, Step};
use crate::platform::Platform;
use crate::sync::mutant;
use core::time::Duration;

impl<P: Platform> Reporter<'_, P> {
    pub(super) fn go_on(&mut self, now: Duration) -> Step {
        let mut budget = StepBudget::full();
        loop {
            let asleep = self.frames.wakeup().is_asleep();
            match core::mem::replace(&mut self.phase, Phase::Resting) {
                Phase::LastCheck(survey) if asleep => return self.check_once_more(survey, budget),
                _ if asleep => return Step::Idle,
                Phase::Resting | Phase::LastCheck(_) => {
                    self.hints_seen = false;
                    self.phase = Phase::Waiting(now.saturating_add(self.settings.delay));
                }
                Phase::Waiting(until) if now < until => {
                    self.phase = Phase::Waiting(until);
                    return Step::Pending(until);
                }
                Phase::Waiting(_) => self.phase = Phase::Counting(Survey::default()),
                Phase::Counting(mut survey) => {
                    let threshold = self.settings.threshold_blocks();
                    let is_enough = |survey: &Survey| survey.waits >= threshold;
                    if self.count(&mut survey, &mut budget, is_enough).is_err() {
                        self.phase = Phase::Counting(survey);
                        return Step::Working;
                    }
                    if is_enough(&survey) {
                        self.phase = Phase::Round(Round::default());
                    } else {
                        self.fall_asleep();
                    }
                }
                Phase::Round(round) => match self.continue_round(round, now, &mut budget) {
                    Some(step) => return step,
                    None => self.fall_asleep(),
                },
            }
        }
    }

    /// Continues a round, and returns the next step of the kernel. Returns `None` if none of the
    /// remaining memory may be reported.
    fn continue_round(
        &mut self,
        mut round: Round,
        now: Duration,
        budget: &mut StepBudget,
    ) -> Option<Step> {
        let room = self.settings.most_blocks().saturating_sub(self.out);
        if room == 0 {
            self.phase = Phase::Round(round);
            return Some(Step::Idle);
        }
        if now < self.not_before {
            self.phase = Phase::Round(round);
            return Some(Step::Pending(self.not_before));
        }
        let mut batch = Batch::new(self.frames.id(), self.frames.wakeup().generation());
        let mut room = Headroom::of(room.min(self.settings.most_at_once()));
        let is_over = self.fill(&mut batch, &mut round, &mut room, budget);
        let is_empty = batch.ranges().is_empty();
        if is_over.is_ok() || !is_empty {
            // Only an unfinished count is of use to the next step.
            round.spare = Spare::default();
        }
        let step = match is_over {
            _ if !is_empty => self.send(batch, now),
            Ok(true) => return self.end_round(&round, now),
            // As much memory is out as may be.
            Ok(false) => Step::Idle,
            Err(Spent) => Step::Working,
        };
        self.phase = Phase::Round(round);
        Some(step)
    }

    /// Continues a round until the batch is full. Returns whether the round has ended.
    fn fill(
        &self,
        batch: &mut Batch,
        round: &mut Round,
        room: &mut Headroom,
        budget: &mut StepBudget,
    ) -> Result<bool, Spent> {
        loop {
            if let Some(rest) = round.rest.take() {
                self.take(rest, batch, room, round, budget)?;
                if round.rest.is_some() {
                    return Ok(false);
                }
            }
            let Some(section) = self.next_section(&mut round.cursor, budget)? else {
                return Ok(true);
            };
            let ripe = self.ripe_in(section, round);
            if ripe != 0 {
                round.rest = Some((section.start(), ripe));
            }
        }
    }

    fn send(&mut self, batch: Batch, now: Duration) -> Step {
        let blocks = batch.blocks();
        if self.out == 0 {
            self.heard = Some(now);
        }
        self.out += blocks;
        self.done.batches += 1;
        let start = self.not_before.max(now);
        self.not_before = start.saturating_add(self.settings.time_for(blocks));
        Step::Ready(Ok(batch))
    }

    fn end_round(&mut self, round: &Round, now: Duration) -> Option<Step> {
        // Pageblocks that are wholly free, but stay divided as CPUs' hints, come last.
        let from_hints = !self.hints_seen && self.frames.coalesce_all_hinted();
        self.hints_seen = true;
        if round.too_young || from_hints {
            let until = now.saturating_add(self.settings.dwell);
            self.phase = Phase::Waiting(until);
            return Some(if now < until { Step::Pending(until) } else { Step::Working });
        }
        None
    }

    fn fall_asleep(&mut self) {
        self.frames.wakeup().sleep();
        // A free that came while the reporter was awake has not called `wake_reporter`.
        mutant!("sleep without a last look" => return);
        self.phase = Phase::LastCheck(Survey::default());
    }

    fn check_once_more(&mut self, mut survey: Survey, mut budget: StepBudget) -> Step {
        let threshold = self.settings.threshold_blocks();
        let is_enough = |survey: &Survey| survey.is_new && survey.waits >= threshold;
        let all = self.count(&mut survey, &mut budget, is_enough);
        let is_new_work_there = is_enough(&survey);
        if all.is_err() {
            self.phase = Phase::LastCheck(survey);
            return Step::Working;
        }
        if is_new_work_there && self.frames.wakeup().wake() { Step::Working } else { Step::Idle }
    }

    /// Counts again, after a change that may make more or less free memory worth reporting.
    pub(super) fn count_again(&mut self) {
        if self.is_on() && self.frames.wakeup().wake() {
            self.phase = Phase::Resting;
        } else if matches!(self.phase, Phase::Counting(_) | Phase::Round(_)) {
            // The change may concern sections that the round has passed already.
            self.phase = Phase::Counting(Survey::default());
        }
    }
}
