//! Lets the kernel wait for interrupts of devices.
//!
//! ArceOS registers a handler for a vector, and enables an input of the I/O APIC, by the same
//! number. It never says which input interrupts at which vector: [`listen`] does.

use axhal::irq::{register, set_enable};
use axhal::mem::phys_to_virt;
use axhal::time::monotonic_time;
use axtask::WaitQueue;
use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use core::time::Duration;

/// The vector of all devices. Neither exceptions nor ArceOS use it, and it is the number of no
/// input.
const VECTOR: u8 = 0x30;
const IO_APIC: usize = 0xfec0_0000;
const INPUTS: usize = 24;
/// The offset of the I/O APIC's data register, and the number of its first register for input 0.
const WINDOW: usize = 0x10;
const FIRST_ENTRY: u8 = 0x10;
/// The interval for polling devices that cannot interrupt.
const PERIOD: Duration = Duration::from_millis(10);
const MASKED_AND_LEVEL: u32 = 1 << 16 | 1 << 15;

/// The inputs that devices use, a bit for each.
static LINES: AtomicU32 = AtomicU32::new(0);
static RAISED: AtomicBool = AtomicBool::new(false);
static WAITING: WaitQueue = WaitQueue::new();

/// Lets this input of the I/O APIC wake the kernel from the next [`wait`] on. Ignores a number
/// without an input.
pub fn listen(line: u8) {
    if usize::from(line) >= INPUTS {
        return;
    }
    // Relaxed: the handler runs on this CPU, and only once inputs are enabled.
    if LINES.fetch_or(1 << line, Ordering::Relaxed) == 0 {
        assert!(register(VECTOR.into(), interrupted), "the vector is ArceOS's");
    }
    let registers = phys_to_virt(IO_APIC.into()).as_mut_ptr_of::<u32>();
    let entry = FIRST_ENTRY + 2 * line;
    // The upper half names CPU 0.
    for (register, value) in [(entry, MASKED_AND_LEVEL | u32::from(VECTOR)), (entry + 1, 0)] {
        // SAFETY: ArceOS maps the I/O APIC there. Nothing else uses it before an input is enabled.
        unsafe {
            registers.write_volatile(register.into());
            registers.byte_add(WINDOW).write_volatile(value);
        }
    }
}

/// Waits until a device interrupts, or until this time. The caller has acknowledged the devices'
/// interrupts. If no device can interrupt, waits [`PERIOD`] at most.
pub fn wait(until: Option<Duration>) {
    enable(true);
    let silent = (LINES.load(Ordering::Relaxed) == 0).then(|| monotonic_time() + PERIOD);
    let until = [until, silent].into_iter().flatten().min();
    // Acquire pairs with the Release in `interrupted`.
    let raised = || RAISED.swap(false, Ordering::Acquire);
    match until.map(|until| until.saturating_sub(monotonic_time())) {
        Some(time) => drop(WAITING.wait_timeout_until(time, raised)),
        None => WAITING.wait_until(raised),
    }
}

/// Handles an interrupt. The line stays active until the thread has read the device's interrupt
/// status, so the inputs are disabled until then.
fn interrupted() {
    enable(false);
    RAISED.store(true, Ordering::Release);
    WAITING.notify_one(false);
}

fn enable(enabled: bool) {
    let lines = LINES.load(Ordering::Relaxed);
    let inputs = (0..INPUTS).filter(|input| lines >> input & 1 == 1);
    inputs.for_each(|input| set_enable(input, enabled));
}
