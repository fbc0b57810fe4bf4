//! Starts the other CPUs by calls of the SBI implementation (SBI, chapter "Hart State Management
//! Extension").

use super::clock::Clock;
use super::cpu_number::boot_hart_id;
use super::{image, interrupts};
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
use hotmem_guest::to_usize;
use sbi_rt::SbiRet;

/// The time after which a CPU counts as missing. It is long, because on a busy host a virtual CPU
/// may start late.
const START_TIMEOUT_US: u64 = 60_000_000;

/// The number of the CPU that has started last. The Release of `other_cpu_main` pairs with the Acquire
/// in `start_one`.
static ARRIVED: AtomicUsize = AtomicUsize::new(0);

/// The reason why a CPU could not be started.
pub(crate) enum StartError<E> {
    /// The CPU gets no stack.
    Stack(E),
    /// The SBI implementation refuses to start the hart.
    Refused(u64, SbiRet),
    /// The hart does not arrive.
    NotStarted(u64),
    /// There is no other hart.
    NoOtherCpu,
}

unsafe extern "C" {
    /// The boot code's entry for a hart that the SBI implementation starts.
    static start_other_hart: u8;
}

/// Starts the other harts with these IDs. They run
/// [`run_other_cpu`](handlers::Handlers::run_other_cpu). `add_stack` makes the stack of the CPU with a
/// number, and returns its end.
pub(crate) fn start_others<E>(
    ids: &[u64],
    clock: &Clock,
    mut add_stack: impl FnMut(usize) -> Result<usize, E>,
) -> Result<(), StartError<E>> {
    for &id in ids.iter().filter(|&&id| id != boot_hart_id()).take(MAX_CPUS - 1) {
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
    // The boot code reads both when the hart has turned translation on.
    let parameters = [number, stack_end];
    let entry = image::phys(&raw const start_other_hart).unwrap_or(0);
    let context = (&raw const parameters).expose_provenance();
    // SAFETY: a barrier. The call is none, and the hart must find the parameters and its page tables.
    unsafe { asm!("fence rw, rw", options(nostack, preserves_flags)) }
    let started = sbi_rt::hart_start(to_usize(id), to_usize(entry), context);
    if started.is_err() {
        return Err(StartError::Refused(id, started));
    }
    let until = clock.now_us() + START_TIMEOUT_US;
    while ARRIVED.load(Acquire) != number {
        if clock.now_us() >= until {
            // The hart may still read its parameters, and the run ends.
            return Err(StartError::NotStarted(id));
        }
        core::hint::spin_loop();
    }
    set_other_cpus(number);
    Ok(())
}

/// Runs another CPU. The boot code calls this function on the stack of that CPU.
pub(super) extern "C" fn other_cpu_main(number: usize) -> ! {
    interrupts::enable();
    overflow_if_planned();
    ARRIVED.store(number, Release);
    (handlers::get().run_other_cpu)(number)
}

impl<E: fmt::Display> fmt::Display for StartError<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            StartError::Stack(error) => error.fmt(f),
            StartError::Refused(id, error) => write!(f, "the hart {id} is not started: {error:?}"),
            StartError::NotStarted(id) => write!(f, "the hart {id} does not start"),
            StartError::NoOtherCpu => f.write_str("there is no other hart"),
        }
    }
}
