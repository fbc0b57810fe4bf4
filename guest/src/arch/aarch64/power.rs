//! Ends the machine and starts CPUs by calls of the firmware (PSCI, Arm DEN0022).

use core::arch::asm;
use core::sync::atomic::{AtomicU8, Ordering::Relaxed};
use hotmem_guest::device_tree::PowerCalls;
use hotmem_guest::report::Verdict;
use smccc::psci::{cpu_on, error, system_off};
use smccc::{Hvc, Smc};

/// How calls are made: 0 if that is not known, 1 by `hvc`, 2 by `smc`. Relaxed: no other data depend
/// on it.
static CALLS: AtomicU8 = AtomicU8::new(0);

/// Sets how calls are made.
pub(super) fn set_calls(calls: Option<PowerCalls>) {
    let number = match calls {
        None => 0,
        Some(PowerCalls::Hvc) => 1,
        Some(PowerCalls::Smc) => 2,
    };
    CALLS.store(number, Relaxed);
}

/// Ends the machine. The verdict is in the report: QEMU ends with status 0 in any case. Halts if the
/// firmware has no such call.
pub(crate) fn exit(_: Verdict) -> ! {
    super::mask::disable();
    // The call returns only if it fails.
    let _ = match CALLS.load(Relaxed) {
        1 => system_off::<Hvc>(),
        2 => system_off::<Smc>(),
        _ => Ok(()),
    };
    loop {
        // SAFETY: the instruction only waits.
        unsafe { asm!("wfi", options(nomem, nostack, preserves_flags)) }
    }
}

/// Starts the CPU with this number of the firmware at a physical address, with `context` in x0.
/// Returns `None` if there is no such call.
pub(super) fn start_cpu(id: u64, entry: u64, context: u64) -> Option<Result<(), error::Error>> {
    match CALLS.load(Relaxed) {
        1 => Some(cpu_on::<Hvc>(id, entry, context)),
        2 => Some(cpu_on::<Smc>(id, entry, context)),
        _ => None,
    }
}
