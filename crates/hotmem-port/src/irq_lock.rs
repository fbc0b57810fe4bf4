//! A spin lock that disables interrupts.

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

    /// Disables interrupts on this CPU. Returns the state before.
    fn disable() -> Self::State;

    /// Restores a state that [`disable`](Self::disable) has returned.
    fn restore(state: Self::State);
}

/// A spin lock whose holder is not interrupted, so that interrupt handlers can take it as well.
pub struct IrqLock<I: Interrupts> {
    held: AtomicBool,
    /// The state that the holder restores.
    state: UnsafeCell<Option<I::State>>,
    interrupts: PhantomData<fn() -> I>,
}

// SAFETY: `state` is read and written by the holder alone, on the CPU that holds the lock.
unsafe impl<I: Interrupts> Send for IrqLock<I> {}
// SAFETY: as above.
unsafe impl<I: Interrupts> Sync for IrqLock<I> {}

// SAFETY: `held` goes from false to true for one CPU at a time. Acquire in `try_lock` pairs with
// Release in `unlock`.
unsafe impl<I: Interrupts> RawMutex for IrqLock<I> {
    #[allow(clippy::declare_interior_mutable_const, reason = "as the trait has it")]
    const INIT: IrqLock<I> = IrqLock {
        held: AtomicBool::new(false),
        state: UnsafeCell::new(None),
        interrupts: PhantomData,
    };
    type GuardMarker = GuardNoSend;

    fn lock(&self) {
        while !self.try_lock() {
            // Interrupts are enabled while this CPU waits.
            while self.held.load(Ordering::Relaxed) {
                spin_loop();
            }
        }
    }

    fn try_lock(&self) -> bool {
        let state = I::disable();
        let free = !self.held.swap(true, Ordering::Acquire);
        if free {
            // SAFETY: this CPU holds the lock now.
            unsafe { *self.state.get() = Some(state) };
        } else {
            I::restore(state);
        }
        free
    }

    unsafe fn unlock(&self) {
        // SAFETY: the caller holds the lock.
        let state = unsafe { (*self.state.get()).take() };
        self.held.store(false, Ordering::Release);
        if let Some(state) = state {
            I::restore(state);
        }
    }
}
