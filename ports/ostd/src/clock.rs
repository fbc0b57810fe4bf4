//! Measures time by the CPU's time-stamp counter.

use core::time::Duration;
use ostd::arch::{read_tsc, tsc_freq};

/// Returns the time since the CPU was reset.
pub fn now() -> Duration {
    let nanos = u128::from(read_tsc()) * 1_000_000_000 / u128::from(tsc_freq());
    Duration::from_nanos(nanos as u64)
}
