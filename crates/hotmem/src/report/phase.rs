//! Keeps the state of a reporter: what it has counted, and how far a round has come.

use crate::addr::Pfn;
use crate::sync::mutant;
use crate::words::{NodeIndex, Zone};
use core::time::Duration;

/// Sections that a step may look at.
const SECTIONS_A_STEP: usize = 64;

/// What a reporter does at this moment.
#[derive(Debug)]
pub(super) enum Phase {
    /// It is idle, or was until a moment ago.
    Resting,
    /// It waits until this time before it looks again.
    Waiting(Duration),
    /// It counts whether enough waits for a round.
    Counting(Survey),
    /// It visits everything that is free and not reported.
    Round(Round),
    /// It has gone to sleep, and looks whether something became free before that.
    LastLook(Survey),
}

/// A count of what is free and neither reported nor pinned, in pageblocks, as far as it has come.
#[derive(Debug, Default)]
pub(super) struct Survey {
    pub(super) cursor: Cursor,
    pub(super) waits: u64,
    /// Whether no round has seen some of it.
    pub(super) is_new: bool,
}

/// How far a round has come.
#[derive(Debug, Default)]
pub(super) struct Round {
    pub(super) cursor: Cursor,
    /// Pageblocks of one section that are to be reported, but did not fit into the last batch: the
    /// section's first frame, and a bit for each.
    pub(super) rest: Option<(Pfn, u64)>,
    /// Whether some pageblocks were too young, or were taken by others while the round looked at
    /// them.
    pub(super) too_young: bool,
    pub(super) spare: Spare,
}

impl Round {
    /// Notes that somebody took some of the pageblocks that the round looked at, and may free them
    /// unreported.
    pub(super) fn note_taken(&mut self) {
        mutant!("what others took is not looked for again" => return);
        self.too_young = true;
    }
}

/// A count of what a node may spare, begun anew for each batch.
#[derive(Debug, Default)]
pub(super) struct Spare {
    pub(super) node: Option<NodeIndex>,
    pub(super) cursor: Cursor,
    /// Pageblocks that are free and not reported, as far as they were counted.
    pub(super) unreported: u64,
    pub(super) is_all: bool,
}

/// A place among the sections in the order of a round: node by node, and downwards on each, because
/// allocations are served from below.
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

/// How many sections this step may still look at.
pub(super) struct Looks(usize);

/// The step has looked at as many sections as it may.
pub(super) struct Spent;

impl Looks {
    /// Returns the looks that a step has.
    pub(super) const fn of_a_step() -> Looks {
        Looks(SECTIONS_A_STEP)
    }

    /// Takes one look. To be called before each look at a section.
    pub(super) fn spend(&mut self) -> Result<(), Spent> {
        self.0 = self.0.checked_sub(1).ok_or(Spent)?;
        Ok(())
    }

    /// Takes half of the looks of a step, for a search that must not use up the step.
    pub(super) fn half(&mut self) -> Result<Looks, Spent> {
        let half = SECTIONS_A_STEP / 2;
        self.0 = self.0.checked_sub(half).ok_or(Spent)?;
        Ok(Looks(half))
    }

    /// Gives back what a search has left of [`half`](Self::half).
    pub(super) fn give_back(&mut self, half: Looks) {
        self.0 += half.0;
    }
}

/// How many pageblocks may still be added to a batch.
pub(super) struct Headroom {
    /// The limit for all nodes and zones together.
    pub(super) left: u64,
    /// The zone and node that were counted last, and how many of their pageblocks are free, or were
    /// when this step began.
    pub(super) free: Option<(NodeIndex, Zone, u64)>,
}

impl Headroom {
    pub(super) fn of(left: u64) -> Headroom {
        Headroom { left, free: None }
    }
}
