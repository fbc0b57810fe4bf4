//! Requests that are polled with a budget.

use super::blocker::Blocker;

/// How much a single poll of a request may do: about this many pageblocks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Budget {
    pub(crate) pageblocks: u64,
}

impl Budget {
    /// Until it is done or has to wait.
    pub const UNLIMITED: Budget = Budget { pageblocks: u64::MAX };

    /// About `n` pageblocks (2 MiB each), at least one window (128 MiB).
    #[must_use]
    pub const fn pageblocks(n: u64) -> Budget {
        Budget { pageblocks: n }
    }

    /// How many pageblocks are left of it.
    #[must_use]
    pub const fn left(self) -> u64 {
        self.pageblocks
    }

    /// Whether there is some left, after taking `pageblocks` off.
    pub(crate) const fn spend(&mut self, pageblocks: u64) -> bool {
        self.pageblocks = self.pageblocks.saturating_sub(pageblocks);
        self.pageblocks > 0
    }
}

/// How far a request has come.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Progress<T> {
    /// It is done.
    Done(T),
    /// The budget is used up: poll again.
    Working,
    /// It cannot go on for now: poll again later, or cancel.
    Pending(Blocker),
}
