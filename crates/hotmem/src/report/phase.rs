//! Keeps the state of a reporter: its phase, its counts, and the position of a round.

use crate::addr::Pfn;
use crate::sync::mutant;
use crate::words::{NodeIndex, Zone};
use core::time::Duration;

/// The number of sections that a step may read.
const SECTIONS_A_STEP: usize = 64;

/// The phase of a reporter.
#[derive(Debug)]
pub(super) enum Phase {
    /// It is idle, or was woken just now.
    Resting,
    /// It waits until this time before it counts again.
    Waiting(Duration),
    /// It counts whether enough free memory waits to be reported for a round.
    Counting(Survey),
    /// It visits everything that is free and not reported.
    Round(Round),
    /// It has gone to sleep, and checks once more whether memory became free before that.
    LastCheck(Survey),
}

/// An unfinished count of pageblocks that are free and neither reported nor pinned.
#[derive(Debug, Default)]
pub(super) struct Survey {
    pub(super) cursor: Cursor,
    pub(super) waits: u64,
    /// Whether a round has not seen some of them yet.
    pub(super) is_new: bool,
}

/// The position of a round.
#[derive(Debug, Default)]
pub(super) struct Round {
    pub(super) cursor: Cursor,
    /// Pageblocks of one section that are to be reported, but did not fit into the last batch: the
    /// section's first frame, and a bit for each pageblock.
    pub(super) rest: Option<(Pfn, u64)>,
    /// Whether some pageblocks were free for too short a time, or were allocated while the round
    /// examined them.
    pub(super) too_young: bool,
    pub(super) spare: Spare,
}

impl Round {
    /// Records that some pageblocks were allocated while the round examined them. They may be freed
    /// again unreported.
    pub(super) fn note_taken(&mut self) {
        mutant!("what others took is not looked for again" => return);
        self.too_young = true;
    }
}

/// A count of the free memory of a node and zone, which starts again for each batch.
#[derive(Debug, Default)]
pub(super) struct Spare {
    pub(super) node: Option<NodeIndex>,
    pub(super) cursor: Cursor,
    /// The number of pageblocks that are free and not reported, of those that were counted so far.
    pub(super) unreported: u64,
    pub(super) is_all: bool,
}

/// A position among the sections in the order of a round: node by node, and downwards on each node,
/// because allocations come from the lowest memory.
#[derive(Clone, Copy, Debug)]
pub(super) struct Cursor {
    pub(super) node: NodeIndex,
    /// All sections from this frame up are done.
    pub(super) done_from: Pfn,
}

impl Default for Cursor {
    fn default() -> Cursor {
        Cursor { node: NodeIndex::FIRST, done_from: Pfn::LIMIT }
    }
}

/// The number of sections that this step may still read.
pub(super) struct StepBudget(usize);

/// The error of a step that has read as many sections as it may.
pub(super) struct Spent;

impl StepBudget {
    /// Returns the limit of a step.
    pub(super) const fn full() -> StepBudget {
        StepBudget(SECTIONS_A_STEP)
    }

    /// Takes one section off the limit. Called before each read of a section.
    pub(super) fn spend(&mut self) -> Result<(), Spent> {
        self.0 = self.0.checked_sub(1).ok_or(Spent)?;
        Ok(())
    }

    /// Takes half of the limit of a step, for a search that must leave some of it.
    pub(super) fn half(&mut self) -> Result<StepBudget, Spent> {
        let half = SECTIONS_A_STEP / 2;
        self.0 = self.0.checked_sub(half).ok_or(Spent)?;
        Ok(StepBudget(half))
    }

    /// Returns what a search has left of [`half`](Self::half).
    pub(super) fn give_back(&mut self, half: StepBudget) {
        self.0 += half.0;
    }
}

/// How many pageblocks may still be added to a batch.
pub(super) struct Headroom {
    /// The limit for all nodes and zones together.
    pub(super) left: u64,
    /// The zone and node that were counted last, and how many of their pageblocks are free, or were
    /// free when this step began.
    pub(super) free: Option<(NodeIndex, Zone, u64)>,
}

impl Headroom {
    pub(super) fn of(left: u64) -> Headroom {
        Headroom { left, free: None }
    }
}
