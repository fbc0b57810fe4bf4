//! Says how long a wait may take.

/// Returns the time limit of a wait for an event of a test or of a kernel. It is so long that only a
/// hang exceeds it.
#[must_use]
pub fn patience() -> std::time::Duration {
    hotmem_time_limit::scaled(std::time::Duration::from_secs(300))
}
