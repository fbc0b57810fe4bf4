//! What `drmgr` asks for: add or remove LMBs, all or nothing.
//!
//! ```text
//! add      acquire ──▶ add ──▶ online ──▶ update ──▶ done
//!             └──────────┴───────┴──────────┘ fails: offline ──▶ release
//! remove   offline ──▶ release ──▶ update ──▶ done
//!             └──────────┴───────────┘ fails: acquire ──▶ add ──▶ online
//! ```
//! The same five steps serve both ways. Each works through the LMBs that the request has *taken*,
//! the connectors one by one, the memory in ranges of neighbours. A request by count passes over
//! LMBs that fail and takes the next; any other fails with its first LMB.
//!
//! | file | what |
//! |---|---|
//! | `outcome.rs` | what comes of a request |
//! | `select.rs`, `taken.rs` | which LMBs it may take; which it has |
//! | `acquire.rs`, `release.rs` | connectors; memory leaves the engine with its connector |
//! | `add.rs`, `offline.rs` | memory, by way of the engine |
//! | `region.rs` | where the engine keeps the memory's words |
//! | `turn.rs`, `end.rs` | what undoes it; the device tree learns of it |
//! | `note.rs` | what the log says (feature `log`) |

mod acquire;
mod add;
mod end;
mod note;
mod offline;
mod outcome;
mod region;
mod release;
mod select;
mod taken;
mod turn;

pub use outcome::{Error, Failure, Progress, Summary, Wait};

use crate::connectors::{Connectors, Exchange};
use crate::property::DrcIndex;
use crate::table::Table;
use core::sync::atomic::{AtomicU64, Ordering};
use hotmem::{Budget, Hooks, Hotplug, NodeId, OnlineType, Pfn, PfnRange, Platform, Removal};
use offline::Leaving;
use turn::Cancel;

/// Which way LMBs go.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Change {
    /// They come.
    Add,
    /// They go.
    Remove,
}

/// Which LMBs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Which {
    /// So many, from the lowest address up.
    Count(u32),
    /// The one with this connector.
    Index(DrcIndex),
    /// So many from the one with this connector up. Those that are there already, or gone already,
    /// are passed over.
    Range {
        /// The first one's connector.
        first: DrcIndex,
        /// How many LMBs.
        count: u32,
    },
}

/// The machine that a request works on.
pub struct Machine<'m, 'f, P, H, C: ?Sized> {
    /// The engine.
    pub hotplug: &'m mut Hotplug<'f, P>,
    /// The kernel.
    pub hooks: &'m mut H,
    /// The hypervisor.
    pub connectors: &'m mut C,
}

/// A request on its way. Poll it until it is done; [`cancel`](Self::cancel) turns it round. One
/// that is dropped before leaves the table busy and its memory half-way.
#[must_use = "a request does nothing until it is polled"]
#[derive(Debug)]
pub struct Request<'f, P: Platform> {
    /// No two requests share it.
    number: u64,
    change: Change,
    which: Which,
    online: OnlineType,
    step: Step,
    /// Position that the step has come to.
    cursor: u32,
    /// Candidates below this have been tried; there are none from `end` on.
    tried: u32,
    end: u32,
    wanted: u32,
    exchange: Option<Exchange>,
    leaving: Option<Leaving<'f, P>>,
    removal: Option<Removal>,
    /// This LMB has no place in the engine and is given back; then the step goes on.
    evicting: Option<(u32, Step)>,
    /// The memory of this LMB cannot leave.
    blocked: Option<u32>,
    /// The most LMBs that are handed over as one, less after a refusal.
    at_most: u32,
    /// Adding goes on here, once what was added is online and has memory to spare.
    resume_adding: Option<u32>,
    undoing: Option<Error>,
    cancel: Cancel,
    because: Option<Error>,
    /// Where the last range that was handed over ended, and its node.
    handed_over: (Pfn, NodeId),
    summary: Summary,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Step {
    Select,
    Acquire,
    Add,
    Online,
    Offline,
    Release,
    Update,
    Done,
}

/// What a part of a step has to say.
enum Flow {
    /// Go on, with the same step or another.
    On,
    /// Wait.
    Wait(Wait),
    /// The budget is used up.
    Working,
}

impl<'f, P: Platform> Request<'f, P> {
    /// LMBs are to come.
    pub fn add(which: Which) -> Request<'f, P> {
        Request::new(Change::Add, which)
    }

    /// LMBs are to go.
    pub fn remove(which: Which) -> Request<'f, P> {
        Request::new(Change::Remove, which)
    }

    /// Either.
    pub fn new(change: Change, which: Which) -> Request<'f, P> {
        let summary = Summary {
            change,
            lmbs: 0,
            ranges: 0,
            skipped: 0,
            misplaced: 0,
            unrestored: 0,
            lost: 0,
        };
        static LAST: AtomicU64 = AtomicU64::new(0);
        Request {
            // Relaxed: that no two are alike is all that matters.
            number: LAST.fetch_add(1, Ordering::Relaxed),
            change,
            which,
            online: OnlineType::Online,
            step: Step::Select,
            cursor: 0,
            tried: 0,
            end: 0,
            wanted: 0,
            exchange: None,
            leaving: None,
            removal: None,
            evicting: None,
            blocked: None,
            at_most: u32::MAX,
            resume_adding: None,
            undoing: None,
            cancel: Cancel::No,
            because: None,
            handed_over: (Pfn::ZERO, NodeId::ZERO),
            summary,
        }
    }

    /// What added memory is put online for; [`OnlineType::Online`] unless said.
    pub fn online_as(self, online: OnlineType) -> Request<'f, P> {
        Request { online, ..self }
    }

    /// LMBs that it has in hand, and how many it is to have.
    #[must_use]
    pub fn progress(&self, table: &Table<'_>) -> (u32, u32) {
        (table.taken, self.wanted)
    }

    /// Goes on. The budget is in pageblocks, as the engine's; one LMB is the least. From its first
    /// poll on it goes on with the same table on the same machine only.
    ///
    /// Cost: what the LMBs of the request need; a 64th of a word per LMB of the table for looking
    /// for candidates; and the property, which is written as a whole.
    pub fn poll<H: Hooks, C: Connectors + ?Sized>(
        &mut self,
        table: &mut Table<'_>,
        machine: &mut Machine<'_, 'f, P, H, C>,
        budget: Budget,
    ) -> Progress {
        let here = (self.number, machine.hotplug.machine());
        if self.step != Step::Select && table.request != Some(here) {
            return Progress::Pending(Wait::Elsewhere);
        }
        let pageblocks = table.lmb_size.frames() / hotmem::geometry::PAGEBLOCK_FRAMES as u64;
        let lmbs = budget.left() / pageblocks.max(1);
        let mut left = u32::try_from(lmbs).unwrap_or(u32::MAX).max(1);
        loop {
            if self.undoing.is_none() && self.is_to_turn_round() {
                self.fail(Error::Cancelled, table, machine);
            }
            if left == 0 {
                return Progress::Working;
            }
            let flow = match self.step {
                Step::Select => match self.select(table) {
                    Ok(()) => {
                        table.request = Some(here);
                        Flow::On
                    }
                    Err(error) => {
                        self.step = Step::Done;
                        return self.end_with(Err(error.into()), table);
                    }
                },
                Step::Acquire => self.acquire(table, machine, &mut left),
                Step::Add => self.add_memory(table, machine, &mut left),
                Step::Online => self.bring_online(table, machine, &mut left),
                Step::Offline => self.take_offline(table, machine, &mut left),
                Step::Release => self.release(table, machine, &mut left),
                Step::Update => self.update(table, machine),
                Step::Done => return self.finish(table),
            };
            match flow {
                Flow::On => {}
                Flow::Wait(wait) => return Progress::Pending(wait),
                Flow::Working => return Progress::Working,
            }
        }
    }

    /// The next step, from the first LMB on.
    fn go_to(&mut self, step: Step) {
        (self.step, self.cursor, self.at_most) = (step, 0, u32::MAX);
    }

    /// All that was wanted is in hand, or more has to be found.
    fn go_on_with(&mut self, table: &Table<'_>, complete: Step, more: Step) {
        self.go_to(if table.taken < self.wanted { more } else { complete });
    }

    /// A range goes to the engine, or is all that is left of one that the budget has cut.
    fn count_range(&mut self, range: PfnRange, node: NodeId) {
        self.summary.ranges += u32::from(self.handed_over != (range.start(), node));
        self.handed_over = (range.end(), node);
    }
}
