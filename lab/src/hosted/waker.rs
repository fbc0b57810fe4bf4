//! Wakes the thread that runs a reporter.

use std::{
    sync::{Mutex, MutexGuard, PoisonError},
    thread::Thread,
};

/// The thread to wake when an idle reporter has work.
#[derive(Debug, Default)]
pub(super) struct Waker(Mutex<Option<Thread>>);

impl Waker {
    pub(super) fn wake(&self) {
        if let Some(thread) = &*locked(&self.0) {
            thread.unpark();
        }
    }

    pub(super) fn set(&self, thread: Option<Thread>) {
        *locked(&self.0) = thread;
    }
}

/// Returns a lock whose other holders do not panic.
pub(super) fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
