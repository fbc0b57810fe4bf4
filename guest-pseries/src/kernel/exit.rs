//! How a run ends that cannot go on.

use super::console::Console;
use super::firmware;
use core::fmt;
use hotmem_guest::report::bail_out;

/// Ends the run with the reason.
pub(super) fn give_up(reason: impl fmt::Display) -> ! {
    bail_out(Console, reason);
    firmware::halt()
}

/// Nothing can go on without what failed here.
pub(super) fn must<T, E: fmt::Display>(what: &str, result: Result<T, E>) -> T {
    result.unwrap_or_else(|error| give_up(format_args!("{what}: {error}")))
}
