//! Gives one call at a time exclusive access to a value, although an interrupt handler may call in
//! the middle of another call. Uses no atomic read-modify-writes.
//!
//! An interrupt handler returns before the interrupted call continues. So a plain load of a flag,
//! followed by a plain store that sets the flag, excludes other calls: if an interrupt arrives between
//! the load and the store, its handler has cleared the flag again when it returns.

use core::cell::UnsafeCell;
use core::sync::atomic::{AtomicBool, Ordering, compiler_fence};

/// A value that one call at a time can access.
pub(crate) struct Nested<T> {
    in_use: AtomicBool,
    value: UnsafeCell<T>,
}

// SAFETY: by the promise to `new`, no two threads access the value at the same time.
unsafe impl<T: Send> Sync for Nested<T> {}

impl<T> Nested<T> {
    /// Wraps a value.
    ///
    /// # Safety
    /// Any two calls of [`with`](Self::with) are ordered in one of two ways: one call returns before
    /// the other begins and happens before it; or one call interrupts the other on the same CPU, and
    /// returns before the other continues.
    pub(crate) const unsafe fn new(value: T) -> Nested<T> {
        Nested { in_use: AtomicBool::new(false), value: UnsafeCell::new(value) }
    }

    /// Calls `f` with the value. Returns `None` if this call has interrupted another one.
    ///
    /// Cost: a load and two stores.
    #[inline(always)]
    pub(crate) fn with<R>(&self, f: impl FnOnce(&mut T) -> R) -> Option<R> {
        // Relaxed suffices, because an interrupt handler sees the stores of its own CPU in program
        // order. The compiler fences keep that order in the compiled code.
        if self.in_use.load(Ordering::Relaxed) {
            return None;
        }
        interruption_point();
        self.in_use.store(true, Ordering::Relaxed);
        compiler_fence(Ordering::SeqCst);
        interruption_point();
        // SAFETY: by the promise to `new`, only a call that interrupts this call, or that this call
        // has interrupted, could access the value now. A call that interrupts this call finds
        // `in_use` set, and returns. This call has found `in_use` cleared, so a call that it has
        // interrupted does not access the value at this moment.
        let result = f(unsafe { &mut *self.value.get() });
        interruption_point();
        compiler_fence(Ordering::SeqCst);
        self.in_use.store(false, Ordering::Relaxed);
        compiler_fence(Ordering::SeqCst);
        interruption_point();
        Some(result)
    }
}

/// Marks a place at which the tests simulate an interrupt.
#[inline(always)]
pub(crate) fn interruption_point() {
    #[cfg(test)]
    tests::interruption_point();
}

#[cfg(test)]
pub(crate) mod tests {
    extern crate std;

    use super::*;
    use core::cell::Cell;

    std::thread_local! {
        static INTERRUPT: Cell<Option<fn()>> = const { Cell::new(None) };
    }

    /// Sets the function that is called at each interruption point of this thread. Returns the previous
    /// function.
    pub(crate) fn interrupt_by(interrupt: Option<fn()>) -> Option<fn()> {
        INTERRUPT.replace(interrupt)
    }

    pub(crate) fn interruption_point() {
        if let Some(interrupt) = INTERRUPT.get() {
            interrupt();
        }
    }

    std::thread_local! {
        // SAFETY: only the test below calls `with`. Each thread has its own value, and an interrupting
        // call returns before the interrupted call continues.
        static VALUE: Nested<u32> = const { unsafe { Nested::new(0) } };
        static REFUSED: Cell<u32> = const { Cell::new(0) };
    }

    fn add_one() {
        let added = VALUE.with(|value| {
            value.with(|sum| {
                interruption_point();
                *sum += 1;
            })
        });
        if added.is_none() {
            REFUSED.set(REFUSED.get() + 1);
        }
    }

    #[test]
    fn a_call_that_interrupts_another_while_the_flag_is_set_is_refused() {
        fn interrupt() {
            // Disable interrupts while this one is handled.
            let handler = interrupt_by(None);
            add_one();
            interrupt_by(handler);
        }
        interrupt_by(Some(interrupt));
        add_one();
        interrupt_by(None);
        // Five interrupts arrive: before the flag is set, three while the flag is set, and after the
        // flag is cleared. The three are refused. The others and `add_one` itself add one each.
        assert_eq!((REFUSED.get(), VALUE.with(|value| value.with(|sum| *sum))), (3, Some(3)));
    }
}
