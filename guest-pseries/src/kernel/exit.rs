//! Ends the run after an error from which the kernel cannot continue.

use super::console::Console;
use super::firmware;
use core::fmt;
use hotmem_guest::report::bail_out;

/// Ends the run with the reason.
pub(super) fn give_up(reason: impl fmt::Display) -> ! {
    bail_out(Console, reason);
    firmware::halt()
}

/// Returns the value of an operation without which the kernel cannot continue. Ends the run if it
/// has failed.
pub(super) fn must<T, E: fmt::Display>(what: &str, result: Result<T, E>) -> T {
    result.unwrap_or_else(|error| give_up(format_args!("{what}: {error}")))
}
