//! Decides the next action of the reporter: wait, count, make a round, or sleep.
//!
//! ```text
//! resting ──woken─▶ waiting ──time──▶ counting ──enough──▶ round: batch, batch, … ──end──▶ waiting,
//!    ▲                                   │                                │       if another round
//!    │                                   └── too little ──┐               │              is needed
//!    └───── nothing became free ─── last check ◀──────────┴── nothing is left
//! ```
//! A round marks each free pageblock as *seen*. The next round, after `min_free_time`, reports the
//! pageblock if the mark is still there: each use overwrites the mark in the block state, at no
//! extra cost.
//!
//! A step reads a limited number of sections (`phase.rs`), however large the machine is. If a
//! count, a round or a last check is not complete, the next step continues it.

use super::phase::{
    BudgetSpent, Headroom, Phase, Round, StepBudget, UnreportedCount, WaitReason, WaitingCount,
};
use super::{Batch, Reporter, Step};
use crate::platform::Platform;
use crate::sync::mutant;
use core::time::Duration;

impl<P: Platform> Reporter<'_, P> {
    pub(super) fn advance(&mut self, now: Duration) -> Step {
        let mut budget = StepBudget::full();
        loop {
            let asleep = self.frames.wakeup().is_asleep();
            match core::mem::replace(&mut self.phase, Phase::Resting) {
                Phase::LastCheck(count) if asleep => return self.check_once_more(count, budget),
                _ if asleep => return Step::Idle,
                Phase::Resting | Phase::LastCheck(_) => {
                    self.has_examined_hints = false;
                    self.phase = Phase::Waiting(now, WaitReason::Woken);
                }
                Phase::Waiting(since, reason) => {
                    let until = since.saturating_add(self.wait_time(reason));
                    if now < until {
                        self.phase = Phase::Waiting(since, reason);
                        return Step::Pending(until);
                    }
                    self.phase = Phase::Counting(WaitingCount::default());
                }
                Phase::Counting(mut count) => {
                    let min_unreported = self.settings.min_unreported_blocks();
                    let is_enough = |count: &WaitingCount| count.waiting_blocks >= min_unreported;
                    if self.count_waiting(&mut count, &mut budget, is_enough).is_err() {
                        self.phase = Phase::Counting(count);
                        return Step::Working;
                    }
                    if is_enough(&count) {
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

    /// Returns how long the reporter waits for this reason, with the present settings.
    fn wait_time(&self, reason: WaitReason) -> Duration {
        match reason {
            WaitReason::Woken => self.settings.wake_delay,
            WaitReason::MustStayFree => self.settings.min_free_time,
            WaitReason::Refused => self.settings.pause_after(self.refusals),
        }
    }

    /// Continues a round, and returns the step for the kernel. Returns `None` if the round has
    /// ended and no pageblock has to become old enough.
    fn continue_round(
        &mut self,
        mut round: Round,
        now: Duration,
        budget: &mut StepBudget,
    ) -> Option<Step> {
        let headroom = self.settings.max_reporting_blocks().saturating_sub(self.blocks_reporting);
        if headroom == 0 {
            self.phase = Phase::Round(round);
            return Some(Step::Idle);
        }
        let (last, blocks) = self.last_batch;
        let next = last.saturating_add(self.settings.time_at_max_rate(blocks));
        if now < next {
            self.phase = Phase::Round(round);
            return Some(Step::Pending(next));
        }
        let mut batch = Batch::new(self.frames.id(), self.frames.wakeup().generation());
        let mut headroom = Headroom::of(headroom.min(self.settings.max_batch_blocks()));
        let is_over = self.fill_batch(&mut batch, &mut round, &mut headroom, budget);
        let is_empty = batch.is_empty();
        if is_over.is_ok() || !is_empty {
            // Keep only an unfinished count for the next step: a finished one is out of date by
            // then.
            round.unreported_count = UnreportedCount::default();
        }
        let step = match is_over {
            _ if !is_empty => self.send_batch(batch, now),
            Ok(true) => return self.end_round(&round, now),
            // No more memory may be reporting.
            Ok(false) => Step::Idle,
            Err(BudgetSpent) => Step::Working,
        };
        self.phase = Phase::Round(round);
        Some(step)
    }

    /// Adds pageblocks to the batch until the batch is full or the round has ended. Returns whether
    /// the round has ended.
    fn fill_batch(
        &self,
        batch: &mut Batch,
        round: &mut Round,
        headroom: &mut Headroom,
        budget: &mut StepBudget,
    ) -> Result<bool, BudgetSpent> {
        loop {
            if let Some(unclaimed) = round.unclaimed_blocks.take() {
                self.claim_into_batch(unclaimed, batch, headroom, round, budget)?;
                if round.unclaimed_blocks.is_some() {
                    return Ok(false);
                }
            }
            let Some(section) = self.next_section(&mut round.position, budget)? else {
                return Ok(true);
            };
            let reportable = self.collect_reportable(section, round);
            if reportable != 0 {
                round.unclaimed_blocks = Some((section.start(), reportable));
            }
        }
    }

    fn send_batch(&mut self, batch: Batch, now: Duration) -> Step {
        let blocks = batch.blocks();
        if self.blocks_reporting == 0 {
            self.unanswered_since = Some(now);
        }
        self.blocks_reporting += blocks;
        self.statistics.batches += 1;
        self.last_batch = (now, blocks);
        Step::Ready(Ok(batch))
    }

    fn end_round(&mut self, round: &Round, now: Duration) -> Option<Step> {
        // The pageblocks that CPUs have as hints stay divided, and so cannot be reported, even if all
        // their frames are free. Join these at last.
        let has_joined = !self.has_examined_hints && self.frames.call().coalesce_all_hinted();
        self.has_examined_hints = true;
        if round.needs_another_round || has_joined {
            let until = now.saturating_add(self.settings.min_free_time);
            self.phase = Phase::Waiting(now, WaitReason::MustStayFree);
            return Some(if now < until { Step::Pending(until) } else { Step::Working });
        }
        None
    }

    fn fall_asleep(&mut self) {
        self.frames.wakeup().sleep();
        // Check once more: a free that came while the reporter was awake has not called
        // `wake_reporter`.
        mutant!("the reporter sleeps without a last check" => return);
        self.phase = Phase::LastCheck(WaitingCount::default());
    }

    fn check_once_more(&mut self, mut count: WaitingCount, mut budget: StepBudget) -> Step {
        let min_unreported = self.settings.min_unreported_blocks();
        let is_enough =
            |count: &WaitingCount| count.has_unseen && count.waiting_blocks >= min_unreported;
        let counted = self.count_waiting(&mut count, &mut budget, is_enough);
        let has_work = is_enough(&count);
        if counted.is_err() {
            self.phase = Phase::LastCheck(count);
            return Step::Working;
        }
        if has_work && self.frames.wakeup().wake() { Step::Working } else { Step::Idle }
    }

    /// Starts the count again after a change that may make more or less free memory worth
    /// reporting.
    pub(super) fn count_again(&mut self) {
        if self.is_on() && self.frames.wakeup().wake() {
            self.phase = Phase::Resting;
        } else if matches!(self.phase, Phase::Counting(_) | Phase::Round(_)) {
            // The change may concern sections that the count or the round has passed already.
            self.phase = Phase::Counting(WaitingCount::default());
        }
    }
}
