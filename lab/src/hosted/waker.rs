//! Wakes the thread that runs a reporter.

use std::{
    sync::{Mutex, MutexGuard, PoisonError},
    thread::Thread,
};

/// The thread to wake when there is memory to report.
#[derive(Debug, Default)]
pub(super) struct Waker(Mutex<Option<Thread>>);

impl Waker {
    pub(super) fn wake(&self) {
        if let Some(thread) = &*locked(&self.0) {
            thread.unpark();
        }
    }

    /// Sets the thread to wake.
    pub(super) fn set(&self, thread: Option<Thread>) {
        *locked(&self.0) = thread;
    }
}

/// Locks a mutex, and ignores poisoning.
pub(super) fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
