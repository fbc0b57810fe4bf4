//! Keeps the state of a reporter: its phase, its counts, and the position of a round.

use crate::addr::Pfn;
use crate::sync::mutant;
use crate::words::{NodeIndex, Zone};
use core::time::Duration;

/// The number of sections that one step may read.
const SECTIONS_A_STEP: usize = 64;

/// The phase of a reporter.
#[derive(Debug)]
pub(super) enum Phase {
    /// The reporter is idle, or was woken just now.
    Resting,
    /// The reporter waits since this time, and then counts again. How long it waits follows from
    /// the reason and the present settings.
    Waiting(Duration, WaitReason),
    /// The reporter counts the memory that waits to be reported, to decide whether it is enough for
    /// a round.
    Counting(WaitingCount),
    /// The reporter visits all memory that is free and not reported.
    Round(Round),
    /// The reporter sleeps, and checks once more whether memory became free before it went to
    /// sleep.
    LastCheck(WaitingCount),
}

/// Why a reporter waits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum WaitReason {
    /// The reporter was woken.
    Woken,
    /// Pageblocks have to stay free for some time.
    MustStayFree,
    /// The host has refused a batch.
    Refused,
}

/// An unfinished count of pageblocks that are free and neither reported nor pinned.
#[derive(Debug, Default)]
pub(super) struct WaitingCount {
    pub(super) position: Position,
    pub(super) waiting_blocks: u64,
    /// Whether a round has not seen some of them yet.
    pub(super) has_unseen: bool,
}

/// The position of a round.
#[derive(Debug, Default)]
pub(super) struct Round {
    pub(super) position: Position,
    /// Pageblocks of one section that are to be reported and are not in a batch yet: the section's
    /// first frame, and a bit for each pageblock.
    pub(super) unclaimed_blocks: Option<(Pfn, u64)>,
    /// Whether another round is needed: some pageblocks were free for too short a time, or were
    /// allocated while the round examined them.
    pub(super) needs_another_round: bool,
    pub(super) unreported_count: UnreportedCount,
}

impl Round {
    /// Records that some pageblocks were allocated while the round examined them. When they are
    /// freed again, they are not reported.
    pub(super) fn note_allocated(&mut self) {
        mutant!("the reporter does not check again what was allocated meanwhile" => return);
        self.needs_another_round = true;
    }
}

/// A count of the unreported free pageblocks of a node. It starts again for each batch.
#[derive(Debug, Default)]
pub(super) struct UnreportedCount {
    pub(super) node: Option<NodeIndex>,
    pub(super) position: Position,
    /// The number of pageblocks that are free and not reported, in the sections that were counted
    /// so far.
    pub(super) unreported_blocks: u64,
    pub(super) is_complete: bool,
}

/// A position among the sections in the order of a round: node by node, and downwards on each node,
/// because allocations come from the lowest memory.
#[derive(Clone, Copy, Debug)]
pub(super) struct Position {
    pub(super) node: NodeIndex,
    /// The sections of the node at or above this frame are done.
    pub(super) done_from: Pfn,
}

impl Default for Position {
    fn default() -> Position {
        Position { node: NodeIndex::FIRST, done_from: Pfn::LIMIT }
    }
}

/// The number of sections that this step may still read.
pub(super) struct StepBudget(usize);

/// The error that the step has read as many sections as it may.
pub(super) struct BudgetSpent;

impl StepBudget {
    /// Returns the budget of a step.
    pub(super) const fn full() -> StepBudget {
        StepBudget(SECTIONS_A_STEP)
    }

    /// Subtracts one section from the budget. Called before each read of a section.
    pub(super) fn spend(&mut self) -> Result<(), BudgetSpent> {
        self.0 = self.0.checked_sub(1).ok_or(BudgetSpent)?;
        Ok(())
    }

    /// Takes half of a full budget out of this budget, for a search that must not use up all of it.
    pub(super) fn half(&mut self) -> Result<StepBudget, BudgetSpent> {
        let half = SECTIONS_A_STEP / 2;
        self.0 = self.0.checked_sub(half).ok_or(BudgetSpent)?;
        Ok(StepBudget(half))
    }

    /// Adds the rest of a [`half`](Self::half) that a search has not used.
    pub(super) fn add_rest(&mut self, half: StepBudget) {
        self.0 += half.0;
    }
}

/// The limits on the number of pageblocks that may still be added to a batch.
pub(super) struct Headroom {
    /// The limit for all nodes and zones together.
    pub(super) blocks_left: u64,
    /// The node and zone whose free pageblocks were counted last, and their number, including those
    /// that this step has claimed since.
    pub(super) free_blocks: Option<(NodeIndex, Zone, u64)>,
}

impl Headroom {
    pub(super) fn of(blocks_left: u64) -> Headroom {
        Headroom { blocks_left, free_blocks: None }
    }
}
