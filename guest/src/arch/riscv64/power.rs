//! Ends the machine by a call of the SBI implementation (SBI, chapter "System Reset Extension").

use core::arch::asm;
use hotmem_guest::report::Verdict;
use sbi_rt::{NoReason, Shutdown, SystemFailure, system_reset};

/// Ends the machine. The reason tells the SBI implementation the verdict: OpenSBI makes QEMU end with a
/// status other than 0 after a failure. Halts if there is no such call.
pub(crate) fn exit(verdict: Verdict) -> ! {
    super::interrupts::disable();
    // The calls return only if they fail.
    let _ = match verdict {
        Verdict::Pass => system_reset(Shutdown, NoReason),
        Verdict::Fail => system_reset(Shutdown, SystemFailure),
    };
    loop {
        // SAFETY: the instruction only waits.
        unsafe { asm!("wfi", options(nomem, nostack, preserves_flags)) }
    }
}
