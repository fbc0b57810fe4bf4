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
//! | `select.rs` | which LMBs it may take |
//! | `acquire.rs`, `release.rs` | connectors; memory leaves the engine with its connector |
//! | `add.rs`, `offline.rs` | memory, by way of the engine |
//! | `region.rs` | where the engine keeps the memory's words |

mod acquire;
mod add;
mod offline;
mod outcome;
mod region;
mod release;
mod select;

pub use outcome::{Error, Failure, Progress, Summary, Wait};

use crate::associativity::NO_ROW;
use crate::connectors::{self, Connectors, Exchange};
use crate::property::DrcIndex;
use crate::table::{Group, Table};
use hotmem::{Budget, Hooks, Hotplug, NodeId, OnlineType, Pfn, PfnRange, Platform, Removal};
use offline::Leaving;

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

/// What the caller has said about turning round.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Cancel {
    No,
    Asked,
    /// What was half-way is being brought to an end.
    Turning,
    /// And that is not to be waited for.
    AskedAgain,
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
        Request {
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

    /// Turns it round: what it did is undone by further polls, and it ends with
    /// [`Error::Cancelled`]. Again, while it waits in undoing: it waits no longer, and what it
    /// waited for is named as lost or not restored.
    pub fn cancel(&mut self) {
        self.cancel = match self.cancel {
            Cancel::No | Cancel::Asked => Cancel::Asked,
            Cancel::Turning | Cancel::AskedAgain => Cancel::AskedAgain,
        };
    }

    /// Goes on. The budget is in pageblocks, as the engine's; one LMB is the least.
    ///
    /// Cost: what the LMBs of the request need; a 64th of a word per LMB of the table for looking
    /// for candidates; and the property, which is written as a whole.
    pub fn poll<H: Hooks, C: Connectors + ?Sized>(
        &mut self,
        table: &mut Table<'_>,
        machine: &mut Machine<'_, 'f, P, H, C>,
        budget: Budget,
    ) -> Progress {
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
                    Ok(()) => Flow::On,
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

    /// Whether the caller wants it and nothing is half-way that must be brought to an end first.
    fn is_to_turn_round(&mut self) -> bool {
        if self.cancel == Cancel::No || matches!(self.step, Step::Select | Step::Done) {
            return false;
        }
        if let Some(exchange) = &mut self.exchange
            && self.cancel == Cancel::Asked
        {
            // What was begun with this connector is undone, which may take a few polls.
            self.cancel = Cancel::Turning;
            if exchange.give_up().is_some() {
                self.exchange = None;
            }
        }
        self.exchange.is_none()
    }

    /// Whether the caller does not want to wait for what is being undone.
    fn is_impatient(&mut self) -> bool {
        let (asked, then) = match self.undoing {
            Some(_) => (Cancel::Asked, Cancel::No),
            None => (Cancel::AskedAgain, Cancel::Turning),
        };
        let impatient = self.cancel == asked;
        if impatient {
            self.cancel = then;
        }
        impatient
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

    /// An LMB cannot be had: passed over or, where just this one will do, the end.
    fn skip_or_fail<H: Hooks, C: Connectors + ?Sized>(
        &mut self,
        error: Error,
        table: &mut Table<'_>,
        machine: &mut Machine<'_, 'f, P, H, C>,
    ) {
        if self.cancel != Cancel::No {
            self.fail(Error::Cancelled, table, machine);
        } else if matches!(self.which, Which::Count(_)) {
            self.summary.skipped += 1;
            self.because.get_or_insert(error);
        } else {
            self.fail(error, table, machine);
        }
    }

    /// Turns round.
    fn fail<H: Hooks, C: Connectors + ?Sized>(
        &mut self,
        error: Error,
        table: &mut Table<'_>,
        machine: &mut Machine<'_, 'f, P, H, C>,
    ) {
        if let Some(leaving) = self.leaving.take() {
            leaving.cancel(machine);
        }
        self.settle(table, machine);
        self.blocked = None;
        self.evicting = None;
        self.resume_adding = None;
        self.undoing = Some(error);
        self.cancel = Cancel::No;
        self.go_to(match self.change {
            Change::Add => Step::Offline,
            Change::Remove => Step::Acquire,
        });
    }

    /// The request is as good as done: the device tree learns of it.
    fn update<H: Hooks, C: Connectors + ?Sized>(
        &mut self,
        table: &mut Table<'_>,
        machine: &mut Machine<'_, 'f, P, H, C>,
    ) -> Flow {
        let assigning = self.change == Change::Add;
        if table.taken > 0 {
            let memory = table.dynamic_memory_after(assigning);
            let arrays = table.rows.has_grown().then(|| table.lookup_arrays());
            let status = machine.connectors.update(memory, arrays);
            if let Some(milliseconds) = connectors::wait(status) {
                return Flow::Wait(Wait::Update { milliseconds });
            }
            if status != 0 {
                self.fail(Error::Update(status), table, machine);
                return Flow::On;
            }
        }
        self.summary.lmbs = table.taken;
        crate::note::each_lmb(table, self.change);
        for group in table.groups.iter_mut().filter(|group| group.taken != 0) {
            let taken = group.taken;
            for bit in (0..64).filter(|bit| taken >> bit & 1 != 0 && assigning) {
                if group.told[bit] != NO_ROW {
                    group.aa_index[bit] = group.told[bit];
                }
            }
            group.assigned =
                if assigning { group.assigned | taken } else { group.assigned & !taken };
        }
        table.rows.note_written();
        self.step = Step::Done;
        Flow::On
    }

    /// Lets go of everything and says what came of it.
    fn finish(&mut self, table: &mut Table<'_>) -> Progress {
        let result = match self.undoing.take() {
            None => Ok(self.summary),
            Some(error) => Err(Failure {
                error,
                because: self.because,
                unrestored: self.summary.unrestored,
                lost: self.summary.lost,
            }),
        };
        for group in table.groups.iter_mut().filter(|group| group.taken != 0) {
            (group.taken, group.online, group.movable) = (0, 0, 0);
            group.told = Group::EMPTY.told;
        }
        table.taken = 0;
        table.busy = false;
        // What is left over from a failure may name them still.
        if result.is_err() && self.summary.unrestored == 0 {
            table.rows.undo();
        }
        self.end_with(result, table)
    }

    fn end_with(&self, result: Result<Summary, Failure>, table: &Table<'_>) -> Progress {
        crate::note::request(self.change, self.which, table.lmb_size, &result);
        Progress::Done(result)
    }
}

impl Table<'_> {
    /// The request in progress has the LMB in hand.
    fn take(&mut self, position: u32) {
        let (group, bit) = self.group_mut(position);
        group.taken |= 1 << bit;
        self.taken += 1;
    }

    /// The request has it in hand no longer.
    fn let_go(&mut self, position: u32) {
        let (group, bit) = self.group_mut(position);
        let mask = !(1_u64 << bit);
        (group.taken, group.online, group.movable) =
            (group.taken & mask, group.online & mask, group.movable & mask);
        group.told[bit] = NO_ROW;
        self.taken -= 1;
    }

    /// The partition has it, or not.
    fn assign(&mut self, position: u32, assigned: bool) {
        let (group, bit) = self.group_mut(position);
        let mask = 1_u64 << bit;
        group.assigned = if assigned { group.assigned | mask } else { group.assigned & !mask };
        if assigned && group.told[bit] != NO_ROW {
            group.aa_index[bit] = group.told[bit];
        }
    }
}
