//! Holds the state of the open request, and runs its steps.

use super::Machine;
use super::cancel::Cancellation;
use super::candidates::Candidates;
use super::offline_stretch::OfflineStretch;
use crate::connectors::Connectors;
use crate::description::Request;
use crate::exchange::Exchange;
use crate::outcome::{Error, Progress, Summary, Wait};
use crate::table::{Group, Table};
use core::ops::Range;
use hotmem::{Budget, Map, NodeId, Pfn, PfnRange, Platform, Removal};

/// The open request.
#[derive(Debug)]
pub(super) struct OpenRequest<'f, P: Platform> {
    pub(super) request: Request,
    pub(super) step: Step,
    /// The position that the current step has reached.
    pub(super) cursor: u32,
    pub(super) candidates: Candidates,
    /// The calls for the connector at the cursor, while they are not complete.
    pub(super) exchange: Option<Exchange>,
    pub(super) going_offline: Option<OfflineStretch<'f, P>>,
    /// The prepared removal of the memory whose connectors are being released.
    pub(super) removal: Option<Removal<'f, P>>,
    /// The engine has agreed to the removal of all taken memory below this position.
    pub(super) checked_below: u32,
    /// The LMB that the engine refused to add, and whose connector is being released; and the step to
    /// continue with after that.
    pub(super) evicting_lmb: Option<(u32, Step)>,
    /// The LMB whose memory cannot be taken offline, and why.
    pub(super) blocked_lmb: Option<(u32, Error)>,
    /// The most LMBs to hand to the engine as one range. It becomes smaller when the engine refuses a
    /// range.
    pub(super) max_range_lmbs: u32,
    /// The position at which adding stopped, because no memory was left for page tables. It continues
    /// there once the memory that was added before is online and can hold them.
    pub(super) resume_adding: Option<u32>,
    /// Why the request is being undone, if it is.
    pub(super) undo_reason: Option<Error>,
    pub(super) cancellation: Cancellation,
    pub(super) first_skip_error: Option<Error>,
    /// The end and the node of the last range that was handed to the engine.
    last_handed_over: (Pfn, NodeId),
    pub(super) summary: Summary,
}

/// What the request does next for all its LMBs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Step {
    Acquire,
    Add,
    Online,
    Offline,
    /// Asks the engine whether it agrees to the removal of the taken memory.
    CheckRemoval,
    /// Releases the connectors of LMBs without memory.
    ReleaseConnectors,
    /// Removes memory, and releases its connectors.
    RemoveAndRelease,
    /// Writes the properties to the device tree.
    Update,
    /// Reports to the platform that a removal has failed.
    ReportFailure,
    Done,
}

/// The result of a part of a step.
pub(super) enum Flow {
    /// The request continues, with the same step or another.
    Continue,
    Wait(Wait),
    /// The budget is used up.
    Working,
}

impl<'f, P: Platform> OpenRequest<'f, P> {
    /// Opens a request that may take these candidates.
    pub(super) fn new(request: Request, step: Step, candidates: Candidates) -> Self {
        let summary = Summary {
            change: request.change,
            lmbs: 0,
            ranges: 0,
            skipped: 0,
            first_skip_error: None,
            misplaced: 0,
            unrestored: 0,
            lost: 0,
        };
        OpenRequest {
            request,
            step,
            cursor: 0,
            candidates,
            exchange: None,
            going_offline: None,
            removal: None,
            checked_below: 0,
            evicting_lmb: None,
            blocked_lmb: None,
            max_range_lmbs: u32::MAX,
            resume_adding: None,
            undo_reason: None,
            cancellation: Cancellation::default(),
            first_skip_error: None,
            last_handed_over: (Pfn::ZERO, NodeId::ZERO),
            summary,
        }
    }

    pub(super) fn request(&self) -> Request {
        self.request
    }

    pub(super) fn wanted(&self) -> u32 {
        self.candidates.wanted()
    }

    /// Continues the request. `machine` has the instance whose LMBs `table` lists.
    pub(super) fn poll<M: Map, C: Connectors + ?Sized>(
        &mut self,
        table: &mut Table<'_>,
        machine: &mut Machine<'_, 'f, P, M, C>,
        budget: Budget,
    ) -> Progress {
        let pageblocks = table.lmb_size.frames() / hotmem::geometry::PAGEBLOCK_FRAMES as u64;
        let lmbs = budget.pageblocks / pageblocks.max(1);
        let mut lmbs_left = u32::try_from(lmbs).unwrap_or(u32::MAX).max(1);
        loop {
            if self.undo_reason.is_none() && self.can_start_undoing() {
                self.fail(Error::Cancelled, table, machine);
            }
            if lmbs_left == 0 {
                return Progress::Working;
            }
            let flow = match self.step {
                Step::Acquire => self.acquire(table, machine, &mut lmbs_left),
                Step::Add => self.add_memory(table, machine, &mut lmbs_left),
                Step::Online => self.bring_online(table, machine, &mut lmbs_left),
                Step::Offline => self.take_offline(table, machine, &mut lmbs_left),
                Step::CheckRemoval => self.check(table, machine, &mut lmbs_left),
                Step::ReleaseConnectors => self.release_connectors(table, machine, &mut lmbs_left),
                Step::RemoveAndRelease => self.release(table, machine, &mut lmbs_left),
                Step::Update => self.update(table, machine),
                Step::ReportFailure => self.report_failure(table, machine),
                Step::Done => return self.finish(table),
            };
            match flow {
                Flow::Continue => {}
                Flow::Wait(wait) => return Progress::Pending(wait),
                Flow::Working => return Progress::Working,
            }
        }
    }

    /// Returns the positions of the LMBs that the request may take.
    pub(super) fn span(&self) -> Range<u32> {
        self.candidates.span()
    }

    /// Returns the first LMB at or above the cursor, within the [span](Self::span), whose bit is set in
    /// the mask that `mask_of` returns for its group. All taken LMBs lie in the span, so a
    /// request for few LMBs reads few groups.
    pub(super) fn next(&self, table: &Table<'_>, mask_of: impl Fn(&Group) -> u64) -> Option<u32> {
        let Range { start, end } = self.span();
        table.next_in(self.cursor.max(start)..end, mask_of)
    }

    /// Starts another step at the first LMB.
    pub(super) fn go_to(&mut self, step: Step) {
        (self.step, self.cursor, self.max_range_lmbs) = (step, 0, u32::MAX);
    }

    /// Starts step `complete` if enough LMBs are taken, and otherwise step `more`.
    pub(super) fn go_on_with(&mut self, table: &Table<'_>, complete: Step, more: Step) {
        self.go_to(if self.candidates.are_taken(table) { complete } else { more });
    }

    /// Counts a range that is handed to the engine. A range that directly follows the last one on the
    /// same node is not counted: it is the rest of a range that the budget has split.
    pub(super) fn count_range(&mut self, range: PfnRange, node: NodeId) {
        self.summary.ranges += u32::from(self.last_handed_over != (range.start(), node));
        self.last_handed_over = (range.end(), node);
    }
}
