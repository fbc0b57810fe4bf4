//! Starts CPUs by calls of the firmware (PSCI, Arm DEN0022).

use super::clock::Clock;
use super::{image, mask, paging, power};
use crate::arch::flat_image::smp::{self, Firmware, StartError};
use core::arch::asm;
use core::fmt;
use smccc::psci::error;

/// The reason why a CPU is not started.
pub(crate) enum Refusal {
    /// The device tree does not say how the firmware is called.
    NoCalls,
    /// The firmware refuses it.
    Firmware(error::Error),
}

/// The bits of a CPU's number in `MPIDR_EL1`.
const ID_MASK: u64 = 0xff_00ff_ffff;

unsafe extern "C" {
    /// The boot code's entry for a CPU that the firmware starts.
    static start_other_cpu: u8;
}

/// The firmware's calls.
struct Psci;

impl Firmware for Psci {
    type Refusal = Refusal;

    fn id_of_first_cpu(&self) -> u64 {
        let own: u64;
        // SAFETY: reading the register has no effect.
        unsafe { asm!("mrs {}, mpidr_el1", out(reg) own, options(nomem, nostack, preserves_flags)) }
        own & ID_MASK
    }

    fn start(&self, id: u64, parameters: &[usize; 2]) -> Result<(), Refusal> {
        let entry = image::phys(&raw const start_other_cpu).unwrap_or(0);
        let context = (&raw const *parameters).expose_provenance() as u64;
        // SAFETY: a barrier. The call is none, and the CPU must find the parameters and its page tables.
        unsafe { asm!("dsb ish", options(nostack, preserves_flags)) }
        power::start_cpu(id, entry, context).ok_or(Refusal::NoCalls)?.map_err(Refusal::Firmware)
    }
}

/// Starts the other CPUs: see [`smp::start_others`].
pub(crate) fn start_others<E>(
    ids: &[u64],
    clock: &Clock,
    add_stack: impl FnMut(usize) -> Result<usize, E>,
) -> Result<(), StartError<E, Refusal>> {
    smp::start_others(&Psci, ids, || clock.now_us(), add_stack)
}

/// Runs another CPU. The boot code calls this function on the stack of that CPU.
pub(super) extern "C" fn other_cpu_main(number: usize) -> ! {
    paging::turn_off_lower_half();
    mask::enable();
    smp::run_other_cpu(number)
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Refusal::NoCalls => f.write_str("the device tree names no calls that start CPUs"),
            Refusal::Firmware(error) => error.fmt(f),
        }
    }
}
