//! Ends the run after an error from which the kernel cannot continue.

use super::exit;
use super::progress::WATCHDOG;
use super::serial::Serial;
use core::fmt;
use hotmem_guest::report::bail_out;

/// Returns the value of an operation without which the kernel cannot continue. Ends the run if it
/// has failed; `what` names the operation.
pub(crate) fn must<T, E: fmt::Display>(what: &str, result: Result<T, E>) -> T {
    result.unwrap_or_else(|error| give_up(format_args!("{what}: {error}")))
}

/// Ends the run with the reason and the step in which it arose.
pub(crate) fn give_up(reason: impl fmt::Display) -> ! {
    x86_64::instructions::interrupts::disable();
    exit::exit(bail_out(Serial::new(), format_args!("{}: {reason}", WATCHDOG.step())))
}

#[panic_handler]
fn panic(info: &core::panic::PanicInfo<'_>) -> ! {
    match info.location() {
        Some(location) => give_up(format_args!("panic at {location}: {}", info.message())),
        None => give_up(format_args!("panic: {}", info.message())),
    }
}
