//! Implements a spin lock that disables interrupts while it is held.

use core::cell::UnsafeCell;
use core::hint::spin_loop;
use core::marker::PhantomData;
use core::sync::atomic::{AtomicBool, Ordering};
use lock_api::{GuardNoSend, RawMutex};

/// Disables and restores interrupts on the calling CPU, and preemption if the kernel preempts
/// kernel code.
pub trait Interrupts {
    /// The state before interrupts were disabled.
    type State: Copy;

    /// Disables interrupts on this CPU. Returns the state before the call.
    fn disable() -> Self::State;

    /// Restores the state `state`, which [`disable`](Self::disable) has returned on this CPU.
    fn restore(state: Self::State);
}

/// A spin lock that disables interrupts on the holder's CPU, so that interrupt handlers can take the
/// lock as well.
pub struct IrqLock<I: Interrupts> {
    is_held: AtomicBool,
    /// The state of interrupts before the holder took the lock. The holder restores it.
    state: UnsafeCell<Option<I::State>>,
    interrupts: PhantomData<fn() -> I>,
}

// SAFETY: `state` is read and written by the holder alone, on the CPU that holds the lock.
unsafe impl<I: Interrupts> Send for IrqLock<I> {}
// SAFETY: `state` is read and written by the holder alone, and `is_held` is atomic.
unsafe impl<I: Interrupts> Sync for IrqLock<I> {}

// SAFETY: `is_held` goes from false to true for one CPU at a time. Acquire in `try_lock` pairs with
// Release in `unlock`.
unsafe impl<I: Interrupts> RawMutex for IrqLock<I> {
    #[allow(clippy::declare_interior_mutable_const, reason = "the trait requires a constant")]
    const INIT: IrqLock<I> = IrqLock {
        is_held: AtomicBool::new(false),
        state: UnsafeCell::new(None),
        interrupts: PhantomData,
    };
    type GuardMarker = GuardNoSend;

    fn lock(&self) {
        while !self.try_lock() {
            // `try_lock` has restored interrupts, so this CPU can take interrupts while it waits.
            while self.is_held.load(Ordering::Relaxed) {
                spin_loop();
            }
        }
    }

    fn try_lock(&self) -> bool {
        let state = I::disable();
        let was_free = !self.is_held.swap(true, Ordering::Acquire);
        if was_free {
            // SAFETY: this CPU holds the lock now.
            unsafe { *self.state.get() = Some(state) };
        } else {
            I::restore(state);
        }
        was_free
    }

    unsafe fn unlock(&self) {
        // SAFETY: the caller holds the lock.
        let state = unsafe { (*self.state.get()).take() };
        self.is_held.store(false, Ordering::Release);
        if let Some(state) = state {
            I::restore(state);
        }
    }
}
