//! Ends the run after an error from which the kernel cannot continue.

use super::progress::WATCHDOG;
use crate::arch::{Console, exit, interrupts};
use core::fmt;
use hotmem_guest::report::bail_out;

/// Returns the value of `result`. If `result` is an error, ends the run with that error. `operation`
/// names the operation that failed.
pub(crate) fn must<T, E: fmt::Display>(operation: &str, result: Result<T, E>) -> T {
    result.unwrap_or_else(|error| give_up(format_args!("{operation}: {error}")))
}

/// Ends the run, and reports `reason` and the step that the kernel was in.
pub(crate) fn give_up(reason: impl fmt::Display) -> ! {
    interrupts::disable();
    exit(bail_out(Console::new(), format_args!("{}: {reason}", WATCHDOG.step())))
}

#[panic_handler]
fn panic(info: &core::panic::PanicInfo<'_>) -> ! {
    match info.location() {
        Some(location) => give_up(format_args!("panic at {location}: {}", info.message())),
        None => give_up(format_args!("panic: {}", info.message())),
    }
}
