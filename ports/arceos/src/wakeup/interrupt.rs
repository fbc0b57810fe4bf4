//! Lets the kernel wait for interrupts of devices.
//!
//! ArceOS can register a handler for a vector, and can enable an input of the I/O APIC. It does not
//! program which input interrupts by which vector, so [`listen`] does that.

use axhal::irq::{register, set_enable};
use axhal::mem::phys_to_virt;
use axhal::time::{monotonic_time, monotonic_time_nanos, set_oneshot_timer, wall_time};
use axtask::future::{block_on, timeout_at};
use core::future::poll_fn;
use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use core::task::Poll;
use core::time::Duration;
use futures_util::task::AtomicWaker;

/// The vector by which all devices interrupt. Neither exceptions nor ArceOS use this vector. No
/// input has this number, because ArceOS does not distinguish numbers of vectors and of inputs.
const VECTOR: u8 = 0x30;
const IO_APIC: usize = 0xfec0_0000;
const INPUTS: usize = 24;
/// The offset of the I/O APIC's data register.
const DATA: usize = 0x10;
/// The number of the I/O APIC's first register for input 0.
const FIRST_ENTRY: u8 = 0x10;
/// The interval for polling devices that cannot interrupt.
const POLL_INTERVAL: Duration = Duration::from_millis(10);
const MASKED_AND_LEVEL: u32 = 1 << 16 | 1 << 15;

/// A bit for each input that a device uses.
static USED_INPUTS: AtomicU32 = AtomicU32::new(0);
static INTERRUPTED: AtomicBool = AtomicBool::new(false);
/// Wakes the thread in [`wait`]. ArceOS's `WaitQueue` cannot do that in an interrupt handler: it has a
/// spin lock, and the handler may interrupt the thread while the thread holds this lock. It also
/// allocates an object that it never frees.
static WAKER: AtomicWaker = AtomicWaker::new();

/// Prepares ArceOS for calls of [`wait`]. Call this before memory is plugged.
pub fn prepare() {
    // ArceOS sets the timer for the first time before it enables the timer's interrupt. On a busy host
    // the timer may expire in between. Then ArceOS would never set the timer again.
    set_oneshot_timer(monotonic_time_nanos());
    // ArceOS's own thread allocates an object that it never frees. Let the thread run while all memory
    // is boot memory, which is never removed.
    axtask::yield_now();
}

/// Makes an input of the I/O APIC end [`wait`] from now on. Does nothing if there is no input with
/// this number.
pub fn listen(input: u8) {
    if usize::from(input) >= INPUTS {
        return;
    }
    // Relaxed: the handler runs on the same CPU, and not before inputs are enabled.
    if USED_INPUTS.fetch_or(1 << input, Ordering::Relaxed) == 0 {
        assert!(register(VECTOR.into(), handle_interrupt), "ArceOS does not use the vector");
    }
    let registers = phys_to_virt(IO_APIC.into()).as_mut_ptr_of::<u32>();
    let entry = FIRST_ENTRY + 2 * input;
    // The upper half names CPU 0.
    for (register, value) in [(entry, MASKED_AND_LEVEL | u32::from(VECTOR)), (entry + 1, 0)] {
        // SAFETY: ArceOS maps the I/O APIC's registers at this address, and nothing else uses them
        // before an input is enabled.
        unsafe {
            registers.write_volatile(register.into());
            registers.byte_add(DATA).write_volatile(value);
        }
    }
}

/// Waits until a device interrupts, or until the time `until`. The caller must have acknowledged
/// all interrupts of the devices. If no device can interrupt, waits at most [`POLL_INTERVAL`].
pub fn wait(until: Option<Duration>) {
    set_inputs_enabled(true);
    let poll_time =
        (USED_INPUTS.load(Ordering::Relaxed) == 0).then(|| monotonic_time() + POLL_INTERVAL);
    let until = [until, poll_time].into_iter().flatten().min();
    let deadline = until.map(|until| wall_time() + until.saturating_sub(monotonic_time()));
    let interrupted = poll_fn(|context| {
        // The handler may run at any time, so register the waker before the check.
        WAKER.register(context.waker());
        // Acquire pairs with the Release in `handle_interrupt`.
        let raised = INTERRUPTED.swap(false, Ordering::Acquire);
        if raised { Poll::Ready(()) } else { Poll::Pending }
    });
    // The caller polls the devices, whether one has interrupted or the time has come.
    let _ = block_on(timeout_at(deadline, interrupted));
    // The waker is an object on the heap, which would keep its memory plugged.
    drop(WAKER.take());
}

/// Handles an interrupt: wakes the thread. A device's line stays active until the thread has read
/// the device's interrupt status, so the inputs are disabled until the next [`wait`].
fn handle_interrupt() {
    set_inputs_enabled(false);
    INTERRUPTED.store(true, Ordering::Release);
    WAKER.wake();
}

fn set_inputs_enabled(enabled: bool) {
    let used_inputs = USED_INPUTS.load(Ordering::Relaxed);
    let inputs = (0..INPUTS).filter(|input| used_inputs >> input & 1 == 1);
    inputs.for_each(|input| set_enable(input, enabled));
}
