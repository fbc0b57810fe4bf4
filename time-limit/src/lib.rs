//! Time limits that scale with the measured speed of the host.
//!
//! A wait needs a time limit, so that a hang becomes an error. A limit that suffices on an idle host
//! may not suffice on a host that is slow or on which other processes run. So limits are chosen for an
//! idle host and passed through [`scaled`], which multiplies them by the time that a known amount of
//! work takes on this host.
#![forbid(unsafe_code)]

use std::{
    hint::black_box,
    sync::OnceLock,
    thread,
    time::{Duration, Instant},
};

/// The number of steps of the work on each CPU.
const STEPS: u32 = 12_000_000;
/// The time for this work on an idle host, if each step takes 1.7 ns.
const IDLE_TIME: Duration = Duration::from_millis(20);

/// Returns the limit for this host: `on_idle_host` multiplied by the [`slowness`].
#[must_use]
pub fn scaled(on_idle_host: Duration) -> Duration {
    on_idle_host.saturating_mul(slowness())
}

/// Returns how many times more time work takes on this host than on an idle one, rounded up. The first
/// call in a process measures it, which takes 20 ms on an idle host.
#[must_use]
pub fn slowness() -> u32 {
    static SLOWNESS: OnceLock<u32> = OnceLock::new();
    *SLOWNESS.get_or_init(|| slowness_of(measure()))
}

/// Returns the slowness of a host on which the work took `time`. It is at least 1.
fn slowness_of(time: Duration) -> u32 {
    let times = time.as_millis().div_ceil(IDLE_TIME.as_millis());
    u32::try_from(times).unwrap_or(u32::MAX).max(1)
}

/// Measures the time in which each CPU that this process may use does the work.
fn measure() -> Duration {
    let cpus = thread::available_parallelism().map_or(1, usize::from);
    let start = Instant::now();
    thread::scope(|scope| (0..cpus).for_each(|_| drop(scope.spawn(work))));
    start.elapsed()
}

/// Does the work: each step uses the result of the step before.
fn work() -> u64 {
    let mut state = black_box(0x9e37_79b9_7f4a_7c15_u64);
    for _ in 0..STEPS {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
    }
    black_box(state)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fast_host_has_the_limits_of_an_idle_host_and_a_slow_one_has_longer_ones() {
        assert_eq!(slowness_of(Duration::ZERO), 1);
        assert_eq!(slowness_of(IDLE_TIME), 1);
        assert_eq!(slowness_of(IDLE_TIME * 3), 3);
        assert_eq!(slowness_of(IDLE_TIME * 5 / 2), 3);
        assert_eq!(slowness_of(Duration::MAX), u32::MAX);
    }

    #[test]
    fn the_limit_is_never_shorter_than_on_an_idle_host() {
        let limit = Duration::from_secs(300);
        assert!(scaled(limit) >= limit);
        assert_eq!(scaled(limit), limit * slowness());
        assert_eq!(scaled(Duration::MAX), Duration::MAX);
    }

    /// A faster host than this does not exist, so a shorter time means that the work was not done.
    #[test]
    fn the_work_takes_at_least_a_tenth_of_a_nanosecond_for_each_step() {
        assert!(measure() > Duration::from_nanos(u64::from(STEPS) / 10));
    }
}
