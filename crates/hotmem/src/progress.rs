//! Defines the result of a poll.

use crate::blocker::Blocker;

/// The result of polling a request, a driver or a reporter. It waits for a `W`: for memory that a
/// [`Blocker`] keeps, unless it is said otherwise.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Progress<T, W = Blocker> {
    /// A result.
    Ready(T),
    /// The budget is used up: poll again when convenient.
    Working,
    /// It cannot continue for now, because of this, or before this time.
    Pending(W),
    /// There is nothing to do.
    Idle,
}

impl<T, W> Progress<T, W> {
    /// Returns what it waits for, if it is pending.
    #[must_use]
    pub fn pending(self) -> Option<W> {
        match self {
            Progress::Pending(reason) => Some(reason),
            Progress::Ready(_) | Progress::Working | Progress::Idle => None,
        }
    }
}
