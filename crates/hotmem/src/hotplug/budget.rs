//! Defines the budget of a poll.

/// How much one poll of a request may do, in pageblocks. The limit is approximate.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Budget {
    pub(crate) pageblocks: u64,
}

impl Budget {
    /// No limit: a poll continues until the request is done or pending.
    pub const UNLIMITED: Budget = Budget { pageblocks: u64::MAX };

    /// Returns a budget of about `n` pageblocks (2 MiB each), and of at least one window (128 MiB).
    #[must_use]
    pub const fn pageblocks(n: u64) -> Budget {
        Budget { pageblocks: n }
    }

    /// Returns the number of pageblocks that are left.
    #[must_use]
    pub const fn left(self) -> u64 {
        self.pageblocks
    }

    /// Takes `pageblocks` off the budget. Returns whether anything is left.
    pub(crate) const fn spend(&mut self, pageblocks: u64) -> bool {
        self.pageblocks = self.pageblocks.saturating_sub(pageblocks);
        self.pageblocks > 0
    }
}
