//! Static cells for values that are too large for a stack.

use super::fatal::give_up;
use core::cell::UnsafeCell;
use core::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// A static cell whose value is taken once. For values that are too large for a small stack.
pub(crate) struct TakeOnce<T> {
    is_taken: AtomicBool,
    value: UnsafeCell<T>,
}

// SAFETY: only one caller of `take` gets a reference to the value, so no two CPUs share it.
unsafe impl<T: Send> Sync for TakeOnce<T> {}

impl<T> TakeOnce<T> {
    /// Makes a cell that holds `value`.
    pub(crate) const fn new(value: T) -> Self {
        TakeOnce { is_taken: AtomicBool::new(false), value: UnsafeCell::new(value) }
    }

    /// Returns the value. Ends the run if the value was taken before.
    #[expect(clippy::mut_from_ref, reason = "only the first call returns the reference")]
    pub(crate) fn take(&'static self) -> &'static mut T {
        // Relaxed: the value was made at compile time, so no other access is ordered by the flag.
        if self.is_taken.swap(true, Relaxed) {
            give_up("a value that exists once was taken twice");
        }
        // SAFETY: the flag was clear, and it is never cleared, so this is the only reference.
        unsafe { &mut *self.value.get() }
    }
}

impl<T> TakeOnce<Option<T>> {
    /// Puts a value into the cell, and returns it. Ends the run if the value was taken before.
    pub(crate) fn put(&'static self, value: T) -> &'static mut T {
        self.take().insert(value)
    }
}
