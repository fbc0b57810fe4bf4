//! Defines the budget of a poll.

/// The amount of work that one poll of a request may do. The limit is approximate.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Budget {
    /// The number of pageblocks (2 MiB each). A poll does at least one window (128 MiB), however
    /// small the number is.
    pub pageblocks: u64,
}

impl Budget {
    /// No limit: a poll continues until the request is done or pending.
    pub const UNLIMITED: Budget = Budget { pageblocks: u64::MAX };

    /// Subtracts `pageblocks` from the budget. Returns whether the budget is not used up.
    pub(crate) const fn spend(&mut self, pageblocks: u64) -> bool {
        self.pageblocks = self.pageblocks.saturating_sub(pageblocks);
        self.pageblocks > 0
    }
}
