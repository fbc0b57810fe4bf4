//! Keeps which LMBs the open request may take, and which of them it has tried.

use crate::outcome::Error;
use crate::table::{Group, Table};
use core::ops::Range;

/// The LMBs that the open request may take, and how many of them it needs.
#[derive(Debug)]
pub(super) struct Candidates {
    /// The position of the first candidate.
    first: u32,
    /// No candidate is at this position or above.
    end: u32,
    /// The position below which all candidates have been tried.
    tried_below: u32,
    wanted: u32,
    /// Returns the LMBs of a group that the request may take.
    of_group: fn(&Group) -> u64,
}

impl Candidates {
    /// Makes the candidates of a request for `wanted` of the LMBs in `span`.
    pub(super) fn new(span: Range<u32>, wanted: u32, of_group: fn(&Group) -> u64) -> Candidates {
        let Range { start: first, end } = span;
        Candidates { first, end, tried_below: first, wanted, of_group }
    }

    /// Returns the positions of the LMBs that the request may take.
    pub(super) fn span(&self) -> Range<u32> {
        self.first..self.end
    }

    /// Returns the number of LMBs that the request needs.
    pub(super) fn wanted(&self) -> u32 {
        self.wanted
    }

    /// Returns whether the request has taken as many LMBs as it needs.
    pub(super) fn are_taken(&self, table: &Table<'_>) -> bool {
        table.taken_lmbs >= self.wanted
    }

    /// Returns how many LMBs the request still has to take.
    pub(super) fn missing(&self, table: &Table<'_>) -> u32 {
        self.wanted.saturating_sub(table.taken_lmbs)
    }

    /// Records that all candidates below this position have been tried.
    pub(super) fn set_tried_below(&mut self, position: u32) {
        self.tried_below = position;
    }

    /// Returns the next LMB that the request may take.
    pub(super) fn next(&self, table: &Table<'_>) -> Option<u32> {
        table.next_in(self.tried_below..self.end, self.of_group)
    }

    /// Returns the LMBs of a group that the request may take.
    pub(super) fn of_group(&self) -> fn(&Group) -> u64 {
        self.of_group
    }

    pub(super) fn not_enough(&self, table: &Table<'_>) -> Error {
        Error::NotEnough { wanted: self.wanted, available: table.taken_lmbs }
    }
}
