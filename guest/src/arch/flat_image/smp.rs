//! Starts the other CPUs one after the other, by an architecture's calls of the firmware.

use crate::arch::handlers;
use crate::arch::overflow::overflow_if_planned;
use core::fmt;
use core::sync::atomic::{
    AtomicUsize,
    Ordering::{Acquire, Release},
};
use hotmem_guest::limits::MAX_CPUS;
use hotmem_guest::signal::{other_cpus, set_other_cpus};

/// The time after which a CPU counts as missing. It is long, because on a busy host a virtual CPU
/// may start late.
const START_TIMEOUT_US: u64 = 60_000_000;

/// The number of the CPU that has started last. The Release of `run_other_cpu` pairs with the Acquire in
/// `start_others`.
static ARRIVED: AtomicUsize = AtomicUsize::new(0);

/// The firmware, as far as it starts CPUs.
pub(in crate::arch) trait Firmware {
    /// The reason why a CPU is not started.
    type Refusal;

    /// Returns the firmware's number of the CPU that has booted, which calls this.
    fn id_of_first_cpu(&self) -> u64;

    /// Starts the CPU with this number of the firmware. Its boot code reads the parameters: the CPU's
    /// number in this kernel, and the end of its stack.
    fn start(&self, id: u64, parameters: &[usize; 2]) -> Result<(), Self::Refusal>;
}

/// The reason why a CPU could not be started.
pub(crate) enum StartError<E, R> {
    /// The CPU gets no stack.
    Stack(E),
    /// The firmware starts no CPU, or not this one.
    Refused(u64, R),
    /// The CPU does not arrive.
    NotStarted(u64),
    /// There is no other CPU.
    NoOtherCpu,
}

/// Starts the other CPUs with these numbers of the firmware. They run
/// [`run_other_cpu`](handlers::Handlers::run_other_cpu). `add_stack` makes the stack of the CPU with a
/// number, and returns its end.
pub(in crate::arch) fn start_others<E, F: Firmware>(
    firmware: &F,
    ids: &[u64],
    now_us: impl Fn() -> u64,
    mut add_stack: impl FnMut(usize) -> Result<usize, E>,
) -> Result<(), StartError<E, F::Refusal>> {
    let own_id = firmware.id_of_first_cpu();
    for &id in ids.iter().filter(|&&id| id != own_id).take(MAX_CPUS - 1) {
        let number = other_cpus() + 1;
        let parameters = [number, add_stack(number).map_err(StartError::Stack)?];
        firmware.start(id, &parameters).map_err(|refusal| StartError::Refused(id, refusal))?;
        let until = now_us() + START_TIMEOUT_US;
        while ARRIVED.load(Acquire) != number {
            if now_us() >= until {
                // The CPU may still read its parameters, and the run ends.
                return Err(StartError::NotStarted(id));
            }
            core::hint::spin_loop();
        }
        set_other_cpus(number);
    }
    if other_cpus() == 0 { Err(StartError::NoOtherCpu) } else { Ok(()) }
}

/// Runs a CPU that the firmware has started, on its own stack, with its interrupts open.
pub(in crate::arch) fn run_other_cpu(number: usize) -> ! {
    overflow_if_planned();
    ARRIVED.store(number, Release);
    (handlers::get().run_other_cpu)(number)
}

impl<E: fmt::Display, R: fmt::Display> fmt::Display for StartError<E, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            StartError::Stack(error) => error.fmt(f),
            StartError::Refused(id, refusal) => {
                write!(f, "the CPU {id:#x} is not started: {refusal}")
            }
            StartError::NotStarted(id) => write!(f, "the CPU {id:#x} does not start"),
            StartError::NoOtherCpu => f.write_str("there is no other CPU"),
        }
    }
}
