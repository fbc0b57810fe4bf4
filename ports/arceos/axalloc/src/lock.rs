//! A spin lock that disables interrupts on the CPU that holds it.

use core::cell::UnsafeCell;
use core::hint::spin_loop;
use core::sync::atomic::{AtomicBool, Ordering};
use hotmem_heap::lock_api::{GuardNoSend, RawMutex};
use kernel_guard::{BaseGuard, NoPreemptIrqSave};

/// The lock of a heap that interrupt handlers use.
pub struct IrqLock {
    held: AtomicBool,
    /// What to restore; the holder's.
    state: UnsafeCell<Option<<NoPreemptIrqSave as BaseGuard>::State>>,
}

// SAFETY: `state` is read and written by the holder alone.
unsafe impl Sync for IrqLock {}

// SAFETY: `held` goes from false to true for one CPU at a time. Acquire in `try_lock` pairs with
// Release in `unlock`.
unsafe impl RawMutex for IrqLock {
    #[allow(clippy::declare_interior_mutable_const, reason = "as the trait has it")]
    const INIT: IrqLock = IrqLock { held: AtomicBool::new(false), state: UnsafeCell::new(None) };
    type GuardMarker = GuardNoSend;

    fn lock(&self) {
        while !self.try_lock() {
            spin_loop();
        }
    }

    fn try_lock(&self) -> bool {
        let state = NoPreemptIrqSave::acquire();
        let free = !self.held.swap(true, Ordering::Acquire);
        if free {
            // SAFETY: this CPU holds the lock now.
            unsafe { *self.state.get() = Some(state) };
        } else {
            NoPreemptIrqSave::release(state);
        }
        free
    }

    unsafe fn unlock(&self) {
        // SAFETY: the caller holds the lock.
        let state = unsafe { (*self.state.get()).take() };
        self.held.store(false, Ordering::Release);
        if let Some(state) = state {
            NoPreemptIrqSave::release(state);
        }
    }
}
