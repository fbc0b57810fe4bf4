//! Lends a value to calls of which one may interrupt another, without atomic read-modify-writes.
//!
//! An interrupt that arrives in the middle of a call returns before that call continues. So it is
//! enough to load a flag first and to set it next: an interrupt that arrives between the load and the
//! store has cleared the flag again when it returns.

use core::cell::UnsafeCell;
use core::sync::atomic::{AtomicBool, Ordering, compiler_fence};

/// A value that one call at a time can use.
pub(crate) struct Nested<T> {
    in_use: AtomicBool,
    value: UnsafeCell<T>,
}

// SAFETY: by the promise of `new`, no two threads use the value at once.
unsafe impl<T: Send> Sync for Nested<T> {}

impl<T> Nested<T> {
    /// Wraps a value that no call uses.
    ///
    /// # Safety
    /// Of any two calls of [`with`](Self::with), either one happens before the other, or one begins in
    /// the middle of the other, on the same CPU, and returns before the other continues.
    pub(crate) const unsafe fn new(value: T) -> Nested<T> {
        Nested { in_use: AtomicBool::new(false), value: UnsafeCell::new(value) }
    }

    /// Calls `f` with the value. Returns `None` if this call has interrupted another one.
    ///
    /// Cost: a load and two stores.
    #[inline(always)]
    pub(crate) fn with<R>(&self, f: impl FnOnce(&mut T) -> R) -> Option<R> {
        // Relaxed: an interrupt sees the stores of its own CPU in the order of the program. The compiler
        // fences keep that order.
        if self.in_use.load(Ordering::Relaxed) {
            return None;
        }
        step();
        self.in_use.store(true, Ordering::Relaxed);
        compiler_fence(Ordering::SeqCst);
        step();
        // SAFETY: by the promise of `new`, only calls that interrupt this one, or that this one has
        // interrupted, could use the value now. The former find the flag set; the latter would have
        // set it.
        let result = f(unsafe { &mut *self.value.get() });
        step();
        compiler_fence(Ordering::SeqCst);
        self.in_use.store(false, Ordering::Relaxed);
        compiler_fence(Ordering::SeqCst);
        step();
        Some(result)
    }
}

/// Marks a place at which an interrupt may arrive, for the tests.
#[inline(always)]
pub(crate) fn step() {
    #[cfg(test)]
    tests::step();
}

#[cfg(test)]
pub(crate) mod tests {
    extern crate std;

    use super::*;
    use core::cell::Cell;

    std::thread_local! {
        static INTERRUPT: Cell<Option<fn()>> = const { Cell::new(None) };
    }

    /// Sets what interrupts this thread at each step. Returns what it was.
    pub(crate) fn interrupt_by(interrupt: Option<fn()>) -> Option<fn()> {
        INTERRUPT.replace(interrupt)
    }

    pub(crate) fn step() {
        if let Some(interrupt) = INTERRUPT.get() {
            interrupt();
        }
    }

    std::thread_local! {
        // SAFETY: all calls are those of the test below.
        static VALUE: Nested<u32> = const { unsafe { Nested::new(0) } };
        static REFUSED: Cell<u32> = const { Cell::new(0) };
    }

    fn add_one() {
        let added = VALUE.with(|value| {
            value.with(|sum| {
                step();
                *sum += 1;
            })
        });
        if added.is_none() {
            REFUSED.set(REFUSED.get() + 1);
        }
    }

    #[test]
    fn a_call_in_the_middle_of_another_is_refused() {
        fn interrupt() {
            // One interrupt does not interrupt another.
            let hook = interrupt_by(None);
            add_one();
            interrupt_by(hook);
        }
        interrupt_by(Some(interrupt));
        add_one();
        interrupt_by(None);
        // Before the flag is set, with the flag, in the call and at its end, and after the flag.
        assert_eq!((REFUSED.get(), VALUE.with(|value| value.with(|sum| *sum))), (3, Some(3)));
    }
}
