//! Where a reporter stands: what it counts, how far a round has come.

use crate::addr::Pfn;
use crate::sync::mutant;
use crate::words::{NodeIndex, Zone};
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
    /// It counts whether there is enough for a round.
    Counting(Survey),
    /// It goes through everything that is free and not reported.
    Round(Round),
    /// It sleeps, and looks whether something became free before it did.
    LastLook(Survey),
}

/// What is free and neither reported nor pinned, as far as it was counted, in pageblocks.
#[derive(Debug, Default)]
pub(super) struct Survey {
    pub(super) cursor: Cursor,
    pub(super) waits: u64,
    /// Some of it no round has seen.
    pub(super) is_new: bool,
}

/// How far a round has come.
#[derive(Debug, Default)]
pub(super) struct Round {
    pub(super) cursor: Cursor,
    /// Pageblocks of one section that were to go, but had no room in the last batch: the section's
    /// first announced frame, and a bit for each.
    pub(super) rest: Option<(Pfn, u64)>,
    /// Something was too young, or taken by others while it was looked at.
    pub(super) too_young: bool,
    pub(super) spare: Spare,
}

impl Round {
    /// Somebody has taken a part of what was looked at, and may give it back as it was.
    pub(super) fn note_taken(&mut self) {
        mutant!("what others took is not looked for again" => return);
        self.too_young = true;
    }
}

/// What a node may spare, counted anew for each batch.
#[derive(Debug, Default)]
pub(super) struct Spare {
    pub(super) node: Option<NodeIndex>,
    pub(super) cursor: Cursor,
    /// Free and not reported, as far as it was counted, in pageblocks.
    pub(super) unreported: u64,
    pub(super) is_all: bool,
}

/// Sections in the order of a round: node by node, and on each downwards, because what is allocated
/// next comes from below.
#[derive(Clone, Copy, Debug)]
pub(super) struct Cursor {
    pub(super) node: NodeIndex,
    /// All from here up are done.
    pub(super) done_from: Pfn,
}

impl Default for Cursor {
    fn default() -> Cursor {
        Cursor { node: NodeIndex::FIRST, done_from: Pfn::LIMIT }
    }
}

/// Sections that this step may still look at.
pub(super) struct Looks(usize);

/// The step has looked at as many sections as it may.
pub(super) struct Spent;

impl Looks {
    /// What a step has.
    pub(super) const fn of_a_step() -> Looks {
        Looks(SECTIONS_A_STEP)
    }

    /// To be called before each look at a section.
    pub(super) fn spend(&mut self) -> Result<(), Spent> {
        self.0 = self.0.checked_sub(1).ok_or(Spent)?;
        Ok(())
    }

    /// Half of what a step has, for a search that must not use up the step.
    pub(super) fn half(&mut self) -> Result<Looks, Spent> {
        let half = SECTIONS_A_STEP / 2;
        self.0 = self.0.checked_sub(half).ok_or(Spent)?;
        Ok(Looks(half))
    }

    /// What is left of [`half`](Self::half).
    pub(super) fn give_back(&mut self, half: Looks) {
        self.0 += half.0;
    }
}

/// Pageblocks that may still go into a batch.
pub(super) struct Headroom {
    /// Of anything.
    pub(super) left: u64,
    /// Zone of a node that was counted last, and how much of it is free or was when this step
    /// began.
    pub(super) free: Option<(NodeIndex, Zone, u64)>,
}

impl Headroom {
    pub(super) fn of(left: u64) -> Headroom {
        Headroom { left, free: None }
    }
}
