//! loom's atomics, with two things added.
//!
//! **Every interleaving is looked at.** To know what to try in another order, loom remembers who
//! touched an atomic last. A thread that loads an atomic and then writes it covers up the loads of
//! all others in this, and their order is never turned round: loom alone takes "load, then
//! compare-exchange" for a step of its own (<https://github.com/tokio-rs/loom/issues/392>, 166).
//! So each operation also leaves its mark on witnesses, of which each thread has one per atomic:
//! a load marks the thread's own, a write all of them.
//!
//! **Orderings can be weakened and read-modify-writes torn**, to see whether a test notices: see
//! `mutants.rs`.

use super::mutants::{is_torn, weakened};
pub(crate) use loom::sync::atomic::Ordering;
use loom::sync::{Notify, atomic};
use std::cell::Cell;

/// Most threads in a model, the first one included.
pub(crate) const THREADS: usize = 3;

loom::thread_local! { static THREAD: Cell<usize> = Cell::new(0); }

/// The thread of this number (0 is the first one) begins.
pub(crate) fn begin_thread(number: usize) {
    assert!(number < THREADS, "a model has at most {THREADS} threads");
    THREAD.with(|thread| thread.set(number));
}

/// Who has touched an atomic, as far as loom must know.
struct Witnesses([Notify; THREADS]);

impl Witnesses {
    fn new() -> Witnesses {
        Witnesses(core::array::from_fn(|_| Notify::new()))
    }

    fn read(&self) {
        // No switch of threads between the operation and this: loom then goes back to the
        // operation when it turns the order round.
        loom::stop_exploring();
        self.0[THREAD.with(Cell::get)].notify();
        loom::explore();
    }

    fn written(&self) {
        loom::stop_exploring();
        self.0.iter().for_each(Notify::notify);
        loom::explore();
    }
}

macro_rules! atomic {
    ($name:ident $(<$T:ident>)?, $value:ty, $loom:ty) => {
        pub(crate) struct $name $(<$T>)? {
            atomic: $loom,
            witnesses: Witnesses,
        }

        #[allow(dead_code, reason = "every type has all operations")]
        impl $(<$T>)? $name $(<$T>)? {
            pub(crate) fn new(value: $value) -> Self {
                Self { atomic: <$loom>::new(value), witnesses: Witnesses::new() }
            }

            #[track_caller]
            pub(crate) fn load(&self, order: Ordering) -> $value {
                let value = self.atomic.load(weakened(order));
                self.witnesses.read();
                value
            }

            #[track_caller]
            pub(crate) fn store(&self, value: $value, order: Ordering) {
                self.atomic.store(value, weakened(order));
                self.witnesses.written();
            }

            #[track_caller]
            pub(crate) fn compare_exchange(
                &self,
                current: $value,
                new: $value,
                success: Ordering,
                failure: Ordering,
            ) -> Result<$value, $value> {
                if is_torn() {
                    let now = self.load(failure);
                    if now != current {
                        return Err(now);
                    }
                    self.store(new, Ordering::Release);
                    return Ok(now);
                }
                let done = self.atomic.compare_exchange(
                    current,
                    new,
                    weakened(success),
                    weakened(failure),
                );
                self.witnesses.written();
                done
            }

            #[track_caller]
            pub(crate) fn compare_exchange_weak(
                &self,
                current: $value,
                new: $value,
                success: Ordering,
                failure: Ordering,
            ) -> Result<$value, $value> {
                self.compare_exchange(current, new, success, failure)
            }

            #[track_caller]
            fn modify(
                &self,
                order: Ordering,
                whole: impl Fn(&$loom, Ordering) -> $value,
                part: impl Fn($value) -> $value,
            ) -> $value {
                if is_torn() {
                    let before = self.load(Ordering::Acquire);
                    self.store(part(before), Ordering::Release);
                    return before;
                }
                let before = whole(&self.atomic, weakened(order));
                self.witnesses.written();
                before
            }

            #[track_caller]
            pub(crate) fn swap(&self, value: $value, order: Ordering) -> $value {
                self.modify(order, |atomic, order| atomic.swap(value, order), |_| value)
            }
        }
    };
}

macro_rules! arithmetic {
    ($($name:ident, $value:ty;)*) => {$(
        atomic!($name, $value, atomic::$name);

        #[allow(dead_code, reason = "every type has all operations")]
        impl $name {
            #[track_caller]
            pub(crate) fn fetch_or(&self, value: $value, order: Ordering) -> $value {
                self.modify(order, |atomic, order| atomic.fetch_or(value, order), |now| now | value)
            }

            #[track_caller]
            pub(crate) fn fetch_and(&self, value: $value, order: Ordering) -> $value {
                self.modify(order, |atomic, order| atomic.fetch_and(value, order), |now| now & value)
            }

            #[track_caller]
            pub(crate) fn fetch_add(&self, value: $value, order: Ordering) -> $value {
                self.modify(order, |atomic, order| atomic.fetch_add(value, order), |now| now.wrapping_add(value))
            }

            #[track_caller]
            pub(crate) fn fetch_max(&self, value: $value, order: Ordering) -> $value {
                self.modify(order, |atomic, order| atomic.fetch_max(value, order), |now| now.max(value))
            }
        }
    )*};
}

arithmetic! {
    AtomicU16, u16;
    AtomicU32, u32;
    AtomicU64, u64;
    AtomicUsize, usize;
}
atomic!(AtomicPtr<T>, *mut T, atomic::AtomicPtr<T>);

#[track_caller]
pub(crate) fn fence(order: Ordering) {
    if weakened(order) != Ordering::Relaxed {
        atomic::fence(order);
    }
}
