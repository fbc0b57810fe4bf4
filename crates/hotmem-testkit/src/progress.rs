//! Reads the results of polls.

use hotmem::{Blocker, Progress};

/// Returns the blocker of a poll that is pending.
#[must_use]
pub fn blocker_of<T>(progress: Progress<T>) -> Option<Blocker> {
    match progress {
        Progress::Pending(blocker) => Some(blocker),
        Progress::Ready(_) | Progress::Working | Progress::Idle => None,
    }
}
