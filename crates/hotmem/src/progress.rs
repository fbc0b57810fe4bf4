//! Defines the result of a poll.

use crate::blocker::Blocker;

/// The result of polling a request, a driver or a reporter. `W` says what a pending request waits
/// for; this is a [`Blocker`], except for a reporter, where it is a time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Progress<T, W = Blocker> {
    /// The request has this result.
    Ready(T),
    /// The budget is used up: poll again when convenient.
    Working,
    /// The request cannot continue now: it waits for this blocker, or until this time.
    Pending(W),
    /// There is nothing to do.
    Idle,
}
