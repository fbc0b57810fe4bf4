//! Ends the run after an error from which the kernel cannot continue.

use super::console::Console;
use super::firmware;
use core::fmt;
use hotmem_guest::report::bail_out;

/// Ends the run, and reports `reason`.
pub(super) fn give_up(reason: impl fmt::Display) -> ! {
    bail_out(Console, reason);
    firmware::halt()
}

/// Returns the value of `result`. If `result` is an error, ends the run with that error. `operation`
/// names the operation that failed.
pub(super) fn must<T, E: fmt::Display>(operation: &str, result: Result<T, E>) -> T {
    result.unwrap_or_else(|error| give_up(format_args!("{operation}: {error}")))
}
