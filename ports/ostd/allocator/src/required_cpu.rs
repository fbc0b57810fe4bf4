//! Refuses CPUs that OSTD does not support.

use ostd::arch::cpu::extension::{IsaExtensions, has_extensions};
use ostd::power::{ExitCode, poweroff};
use ostd::prelude::println;

/// Prints the reason and halts if the CPU has no FSGSBASE. OSTD executes
/// `rdgsbase` before it has set up its handlers of exceptions, so such a CPU would reset without a
/// message.
pub fn check() {
    if !has_extensions(IsaExtensions::FSGSBASE) {
        println!("Bail out! the CPU has no FSGSBASE, which OSTD needs");
        poweroff(ExitCode::Failure);
    }
}
