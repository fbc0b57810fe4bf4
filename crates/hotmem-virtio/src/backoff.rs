//! Computes the waits of an exponential back-off after failures.

use core::time::Duration;

/// The state of an exponential back-off. The clock may jump.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Backoff {
    failures: u32,
    waiting_since: Option<Duration>,
}

/// The first wait.
const FIRST_WAIT: Duration = Duration::from_millis(1);
/// The number of doublings after which the wait no longer grows: about 4 s.
const MAX_DOUBLINGS: u32 = 12;

impl Backoff {
    /// The number of consecutive failures that are not reported. Their waits take about 60 ms.
    pub(crate) const MAX_UNREPORTED_FAILURES: u32 = 6;

    /// Records a failure, which doubles the wait.
    pub(crate) fn start_wait(&mut self, now: Duration) {
        self.failures = self.failures.saturating_add(1);
        self.waiting_since = Some(now);
    }

    /// Ends the wait, after a success or a new request.
    pub(crate) fn reset(&mut self) {
        *self = Backoff::default();
    }

    /// Returns whether more than [`MAX_UNREPORTED_FAILURES`](Self::MAX_UNREPORTED_FAILURES)
    /// consecutive failures have occurred, so that they should be reported.
    pub(crate) fn must_be_reported(&self) -> bool {
        self.failures > Self::MAX_UNREPORTED_FAILURES
    }

    /// Returns the end of the wait, or `None` if the wait is over.
    pub(crate) fn wait_end(&mut self, now: Duration) -> Option<Duration> {
        let since = self.waiting_since?;
        // A clock that was set back must not prolong the wait.
        let since = since.min(now);
        let until =
            since.saturating_add(FIRST_WAIT * (1 << (self.failures - 1).min(MAX_DOUBLINGS)));
        self.waiting_since = (now < until).then_some(since);
        self.waiting_since.map(|_| until)
    }
}

/// Returns the earlier of two times. `None` is a time that never comes.
pub(crate) fn earlier(one: Option<Duration>, other: Option<Duration>) -> Option<Duration> {
    match (one, other) {
        (Some(one), Some(other)) => Some(one.min(other)),
        (one, other) => one.or(other),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn waits_double_up_to_a_limit_and_end() {
        let mut backoff = Backoff::default();
        let mut now = MS;
        assert_eq!(backoff.wait_end(now), None);
        let mut last = Duration::ZERO;
        for failure in 1..40 {
            backoff.start_wait(now);
            assert_eq!(backoff.must_be_reported(), failure > Backoff::MAX_UNREPORTED_FAILURES);
            let until = backoff.wait_end(now).unwrap();
            let wait = until - now;
            assert_eq!(wait, (last * 2).clamp(MS, MS * 4096));
            assert_eq!(backoff.wait_end(until - MS / 2), Some(until));
            assert_eq!(backoff.wait_end(until), None);
            (last, now) = (wait, until);
        }
        backoff.reset();
        backoff.start_wait(now);
        assert_eq!(backoff.wait_end(now), Some(now + MS));
    }

    #[test]
    fn a_clock_that_jumps_shortens_waits_or_restarts_them_but_never_prolongs_them() {
        let mut backoff = Backoff::default();
        backoff.start_wait(MS * 1000);
        assert_eq!(backoff.wait_end(MS * 10), Some(MS * 11));
        assert_eq!(backoff.wait_end(MS * 10_000), None);
        backoff.start_wait(Duration::MAX);
        assert_eq!(backoff.wait_end(Duration::MAX), None);
    }
}
