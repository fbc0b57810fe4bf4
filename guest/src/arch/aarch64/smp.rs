//! Starts the other CPUs by calls of the firmware.

use super::clock::Clock;
use super::{image, mask, paging, power};
use crate::arch::handlers;
use crate::arch::overflow::overflow_if_planned;
use core::arch::asm;
use core::fmt;
use core::sync::atomic::{
    AtomicUsize,
    Ordering::{Acquire, Release},
};
use hotmem_guest::limits::MAX_CPUS;
use hotmem_guest::signal::{other_cpus, set_other_cpus};
use smccc::psci::error;

/// The time after which a CPU counts as missing. It is long, because on a busy host a virtual CPU
/// may start late.
const START_TIMEOUT_US: u64 = 60_000_000;
/// The bits of a CPU's number in `MPIDR_EL1`.
const ID_MASK: u64 = 0xff_00ff_ffff;

/// The number of the CPU that has started last. The Release of `other_cpu_main` pairs with the Acquire
/// in `start_one`.
static ARRIVED: AtomicUsize = AtomicUsize::new(0);

/// The reason why a CPU could not be started.
pub(crate) enum StartError<E> {
    /// The CPU gets no stack.
    Stack(E),
    /// The device tree does not say how the firmware is called.
    NoCalls,
    /// The firmware refuses to start the CPU.
    Refused(u64, error::Error),
    /// The CPU does not arrive.
    NotStarted(u64),
    /// There is no other CPU.
    NoOtherCpu,
}

unsafe extern "C" {
    /// The boot code's entry for a CPU that the firmware starts.
    static start_other_cpu: u8;
}

/// Starts the other CPUs with these numbers of the firmware. They run
/// [`run_other_cpu`](handlers::Handlers::run_other_cpu). `add_stack` makes the stack of the CPU with a
/// number, and returns its end.
pub(crate) fn start_others<E>(
    ids: &[u64],
    clock: &Clock,
    mut add_stack: impl FnMut(usize) -> Result<usize, E>,
) -> Result<(), StartError<E>> {
    let own: u64;
    // SAFETY: reading the register has no effect.
    unsafe { asm!("mrs {}, mpidr_el1", out(reg) own, options(nomem, nostack, preserves_flags)) }
    for &id in ids.iter().filter(|&&id| id != own & ID_MASK).take(MAX_CPUS - 1) {
        let number = other_cpus() + 1;
        start_one(id, number, add_stack(number).map_err(StartError::Stack)?, clock)?;
    }
    if other_cpus() == 0 { Err(StartError::NoOtherCpu) } else { Ok(()) }
}

fn start_one<E>(
    id: u64,
    number: usize,
    stack_end: usize,
    clock: &Clock,
) -> Result<(), StartError<E>> {
    // The boot code reads both when the CPU's MMU is on.
    let parameters = [number, stack_end];
    let entry = image::phys(&raw const start_other_cpu).unwrap_or(0);
    let context = (&raw const parameters).expose_provenance() as u64;
    // SAFETY: a barrier. The call is none, and the CPU must find the parameters and its page tables.
    unsafe { asm!("dsb ish", options(nostack, preserves_flags)) }
    let started = power::start_cpu(id, entry, context);
    started.ok_or(StartError::NoCalls)?.map_err(|error| StartError::Refused(id, error))?;
    let until = clock.now_us() + START_TIMEOUT_US;
    while ARRIVED.load(Acquire) != number {
        if clock.now_us() >= until {
            // The CPU may still read its parameters, and the run ends.
            return Err(StartError::NotStarted(id));
        }
        core::hint::spin_loop();
    }
    set_other_cpus(number);
    Ok(())
}

/// Runs another CPU. The boot code calls this function on the stack of that CPU.
pub(super) extern "C" fn other_cpu_main(number: usize) -> ! {
    paging::turn_off_lower_half();
    mask::enable();
    overflow_if_planned();
    ARRIVED.store(number, Release);
    (handlers::get().run_other_cpu)(number)
}

impl<E: fmt::Display> fmt::Display for StartError<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            StartError::Stack(error) => error.fmt(f),
            StartError::NoCalls => f.write_str("the device tree names no calls that start CPUs"),
            StartError::Refused(id, error) => write!(f, "the CPU {id:#x} is not started: {error}"),
            StartError::NotStarted(id) => write!(f, "the CPU {id:#x} does not start"),
            StartError::NoOtherCpu => f.write_str("there is no other CPU"),
        }
    }
}
