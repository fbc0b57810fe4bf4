//! Ends the run after an error from which the kernel cannot continue.

use super::console::{self, Console};
use core::fmt;
use core::fmt::Write;
use hotmem_guest::report::bail_out;

/// Returns the value of an operation without which the kernel cannot continue. Ends the run if it
/// has failed.
pub(crate) fn must<T, E: fmt::Display>(operation: &str, result: Result<T, E>) -> T {
    result.unwrap_or_else(|error| give_up(format_args!("{operation}: {error}")))
}

/// Ends the run with the reason.
pub(crate) fn give_up(reason: impl fmt::Display) -> ! {
    bail_out(Console::new(), reason);
    console::shut_down()
}

#[panic_handler]
fn panic(info: &core::panic::PanicInfo<'_>) -> ! {
    let mut console = Console::new();
    let _ = writeln!(console);
    give_up(format_args!("{info}"))
}
