//! Takes machine checks, and hands the frames that they report as bad to the main loop.

use crate::arch::handlers;
use core::arch::x86_64::__cpuid;
use core::sync::atomic::{
    AtomicU64,
    Ordering::{Acquire, Release},
};
use hotmem::Pfn;
use hotmem_guest::machine_check::{BankError, interpret};
use x86_64::registers::control::{Cr4, Cr4Flags};
use x86_64::registers::model_specific::Msr;

/// The capabilities, the status and the control of all banks. Their MSRs follow each other.
const GLOBAL_CAPABILITIES: u32 = 0x179;
const GLOBAL_STATUS: u32 = 0x17a;
const GLOBAL_CONTROL: u32 = 0x17b;
const HAS_GLOBAL_CONTROL: u64 = 1 << 8;
/// The MSRs of bank 0: its control, status and address. Each bank has four MSRs.
const BANK_CONTROL: u32 = 0x400;
const BANK_STATUS: u32 = 0x401;
const BANK_ADDRESS: u32 = 0x402;
/// The bits of CPUID, leaf 1, EDX: the exception, and the MSRs of banks.
const HAS_EXCEPTION: u32 = 1 << 7;
const HAS_BANKS: u32 = 1 << 14;

/// The largest number of bad frames that wait for the main loop.
const MAX_WAITING: usize = 16;
/// The numbers of bad frames, plus one; 0 is an empty entry. The Release of the handler pairs with
/// the Acquire of [`take_bad_frame`].
static BAD_FRAMES: [AtomicU64; MAX_WAITING] = [const { AtomicU64::new(0) }; MAX_WAITING];

/// Enables machine checks on the calling CPU, if it has them. Without this a machine check resets
/// the machine.
pub(crate) fn enable() {
    let needed = HAS_EXCEPTION | HAS_BANKS;
    if __cpuid(1).edx & needed != needed {
        return;
    }
    // SAFETY: the CPU has the MSRs and the bit. The exception has a handler.
    unsafe {
        if capabilities() & HAS_GLOBAL_CONTROL != 0 {
            Msr::new(GLOBAL_CONTROL).write(u64::MAX);
        }
        for bank in banks() {
            Msr::new(BANK_CONTROL + bank).write(u64::MAX);
            Msr::new(BANK_STATUS + bank).write(0);
        }
        Cr4::write(Cr4::read() | Cr4Flags::MACHINE_CHECK_EXCEPTION);
    }
}

/// Handles a machine check of the calling CPU.
pub(crate) fn handle() {
    // SAFETY: a CPU with machine checks has these MSRs.
    let read = |register: u32| unsafe { Msr::new(register).read() };
    let global_status = read(GLOBAL_STATUS);
    for bank in banks() {
        let status = read(BANK_STATUS + bank);
        match interpret(global_status, status, read(BANK_ADDRESS + bank)) {
            None => continue,
            Some(BankError::Fatal(reason)) => (handlers::get().give_up)(&format_args!(
                "machine check: {reason}, status {status:#x}"
            )),
            Some(BankError::BadFrame(frame)) => record(frame),
        }
        // SAFETY: the write clears the error, which was recorded.
        unsafe { Msr::new(BANK_STATUS + bank).write(0) }
    }
    // SAFETY: the write ends the machine check. Another one before it would reset the machine.
    unsafe { Msr::new(GLOBAL_STATUS).write(0) }
}

/// Returns a bad frame that was not returned before.
pub(crate) fn take_bad_frame() -> Option<Pfn> {
    let taken = BAD_FRAMES.iter().map(|entry| entry.swap(0, Acquire)).find(|&entry| entry != 0)?;
    Pfn::new(taken - 1)
}

fn record(frame: Pfn) {
    let entry = frame.number() + 1;
    let is_recorded = BAD_FRAMES.iter().any(|waiting| {
        let was = waiting.compare_exchange(0, entry, Release, Acquire);
        was.map_or_else(|other| other == entry, |_| true)
    });
    if !is_recorded {
        (handlers::get().give_up)(&"machine check: too many bad frames at once");
    }
}

fn capabilities() -> u64 {
    // SAFETY: a CPU with machine checks has this MSR.
    unsafe { Msr::new(GLOBAL_CAPABILITIES).read() }
}

/// Returns the offset of each bank's MSRs.
fn banks() -> impl Iterator<Item = u32> {
    let [count, ..] = capabilities().to_le_bytes();
    (0..u32::from(count)).map(|bank| 4 * bank)
}
