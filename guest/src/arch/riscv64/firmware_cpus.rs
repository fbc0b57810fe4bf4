//! Starts harts by calls of the SBI implementation (SBI, chapter "Hart State Management Extension").

use super::clock::Clock;
use super::cpu_number::boot_hart_id;
use super::{image, interrupts};
use crate::arch::flat_image::smp::{self, Firmware, StartError};
use core::arch::asm;
use core::fmt;
use core::sync::atomic::{
    AtomicU64, AtomicUsize,
    Ordering::{Relaxed, Release},
};
use hotmem_guest::to_usize;
use sbi_rt::SbiRet;

/// The SBI implementation refuses to start a hart.
pub(crate) struct Refusal(SbiRet);

unsafe extern "C" {
    /// The boot code's entry for a hart that the SBI implementation starts.
    static start_other_hart: u8;
}

/// The hart that is being started. Its boot code waits until it finds its own ID here.
#[repr(C)]
struct NextHart {
    id: AtomicU64,
    cpu_number: AtomicUsize,
    stack_end: AtomicUsize,
}

/// Read by the boot code.
#[unsafe(no_mangle)]
static next_hart: NextHart = NextHart {
    id: AtomicU64::new(u64::MAX),
    cpu_number: AtomicUsize::new(0),
    stack_end: AtomicUsize::new(0),
};

/// The firmware's calls.
struct Sbi;

impl Firmware for Sbi {
    type Refusal = Refusal;

    fn id_of_first_cpu(&self) -> u64 {
        boot_hart_id()
    }

    fn start(&self, id: u64, &[cpu_number, stack_end]: &[usize; 2]) -> Result<(), Refusal> {
        let entry = image::phys(&raw const start_other_hart).unwrap_or(0);
        // Relaxed: the hart reads these two after its ID. The Release of the ID pairs with the fence in
        // the boot code.
        next_hart.cpu_number.store(cpu_number, Relaxed);
        next_hart.stack_end.store(stack_end, Relaxed);
        next_hart.id.store(id, Release);
        // SAFETY: a barrier. The call is none, and the hart must find its page tables.
        unsafe { asm!("fence rw, rw", options(nostack, preserves_flags)) }
        let started = sbi_rt::hart_start(to_usize(id), to_usize(entry), 0);
        if started.is_err() { Err(Refusal(started)) } else { Ok(()) }
    }
}

/// Starts the other CPUs: see [`smp::start_others`].
pub(crate) fn start_others<E>(
    ids: &[u64],
    clock: &Clock,
    add_stack: impl FnMut(usize) -> Result<usize, E>,
) -> Result<(), StartError<E, Refusal>> {
    smp::start_others(&Sbi, ids, || clock.now_us(), add_stack)
}

/// Runs another CPU. The boot code calls this function on the stack of that CPU.
pub(super) extern "C" fn other_cpu_main(number: usize) -> ! {
    interrupts::enable();
    smp::run_other_cpu(number)
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.0)
    }
}
