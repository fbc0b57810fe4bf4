//! Wraps loom's atomics, so that loom explores every interleaving, and so that operations can be
//! made faulty.
//!
//! **loom explores every interleaving.** To find the operations that it must reorder, loom
//! remembers only the last access to an atomic. If a thread loads an atomic and then writes it,
//! loom forgets the earlier loads of the other threads, and never reorders the write with these
//! loads. So loom treats a load and the following compare-exchange as one step (loom's issues 166
//! and 392, <https://github.com/tokio-rs/loom/issues/392>). Therefore each atomic here has one
//! *witness* for each thread, which is another object that loom tracks. A load accesses the witness
//! of its thread, and a write accesses all witnesses.
//!
//! **Operations can be made faulty**, to check that a scenario notices: see `mutants.rs`.

use super::mutants::{Fault, ends_delay, fault, weakened};
pub(crate) use loom::sync::atomic::Ordering;
use loom::sync::{Notify, atomic};
use std::boxed::Box;
use std::cell::{Cell, RefCell};
use std::vec::Vec;

/// The largest number of threads in a model, including the first one.
pub(crate) const THREADS: usize = 3;

loom::thread_local! {
    static THREAD_NUMBER: Cell<usize> = Cell::new(0);
    /// The thread's writes that a mutant has delayed.
    static DELAYED: RefCell<Vec<Box<dyn FnOnce()>>> = RefCell::new(Vec::new());
}

/// Tells the atomics that the calling thread has this number. The first thread of a model has
/// number 0.
pub(crate) fn begin_thread(number: usize) {
    assert!(number < THREADS, "a model has at most {THREADS} threads");
    THREAD_NUMBER.with(|thread| thread.set(number));
}

/// The witnesses of an atomic, one for each thread.
struct Witnesses([Notify; THREADS]);

impl Witnesses {
    fn new() -> Witnesses {
        Witnesses(core::array::from_fn(|_| Notify::new()))
    }

    fn note_load(&self) {
        // loom must not switch threads between the operation and the access to the witness. If loom
        // then reorders the access, it reorders the operation too.
        loom::stop_exploring();
        self.0[THREAD_NUMBER.with(Cell::get)].notify();
        loom::explore();
    }

    fn note_write(&self) {
        loom::stop_exploring();
        self.0.iter().for_each(Notify::notify);
        loom::explore();
    }
}

/// Makes the delayed writes, if the caller's write is one of the function that these writes are
/// delayed past. Called after each write.
#[track_caller]
fn make_due_writes() {
    if ends_delay() {
        let delayed = DELAYED.with(|delayed| delayed.take());
        delayed.into_iter().for_each(|write| write());
    }
}

macro_rules! atomic {
    // `$moved(now, from, to)` applies the change from `from` to `to` to the value `now`.
    ($name:ident $(<$T:ident>)?, $value:ty, $loom:ty, $zero:expr, $moved:expr) => {
        pub(crate) struct $name $(<$T>)? {
            atomic: $loom,
            witnesses: Witnesses,
        }

        #[allow(dead_code, reason = "every type has all operations")]
        impl $(<$T: 'static>)? $name $(<$T>)? {
            pub(crate) fn new(value: $value) -> Self {
                Self { atomic: <$loom>::new(value), witnesses: Witnesses::new() }
            }

            #[track_caller]
            pub(crate) fn load(&self, order: Ordering) -> $value {
                let value = self.atomic.load(weakened(order));
                self.witnesses.note_load();
                if fault() == Some(Fault::Blind) { $zero } else { value }
            }

            #[track_caller]
            pub(crate) fn store(&self, value: $value, order: Ordering) {
                match fault() {
                    Some(Fault::Late) => self.write_later(order, move |_| value),
                    Some(Fault::Skipped) => {}
                    _ => {
                        self.atomic.store(value, weakened(order));
                        self.witnesses.note_write();
                    }
                }
                make_due_writes();
            }

            #[track_caller]
            pub(crate) fn compare_exchange(
                &self,
                current: $value,
                new: $value,
                success: Ordering,
                failure: Ordering,
            ) -> Result<$value, $value> {
                let done = match fault() {
                    Some(fault @ (Fault::Torn | Fault::Late | Fault::Skipped)) => {
                        let now = self.load(failure);
                        match fault {
                            _ if now != current => return Err(now),
                            Fault::Torn => self.store(new, Ordering::Release),
                            Fault::Late => {
                                self.write_later(success, move |now| $moved(now, current, new));
                            }
                            _ => {}
                        }
                        Ok(now)
                    }
                    _ => {
                        let (success, failure) = (weakened(success), weakened(failure));
                        let done = self.atomic.compare_exchange(current, new, success, failure);
                        self.witnesses.note_write();
                        done
                    }
                };
                make_due_writes();
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
                operation: impl Fn(&$loom, Ordering) -> $value,
                new_value: impl Fn($value) -> $value + 'static,
            ) -> $value {
                let before = match fault() {
                    Some(fault @ (Fault::Torn | Fault::Late | Fault::Skipped)) => {
                        let before = self.load(Ordering::Acquire);
                        match fault {
                            Fault::Torn => self.store(new_value(before), Ordering::Release),
                            Fault::Late => self.write_later(order, new_value),
                            _ => {}
                        }
                        before
                    }
                    _ => {
                        let before = operation(&self.atomic, weakened(order));
                        self.witnesses.note_write();
                        before
                    }
                };
                make_due_writes();
                before
            }

            fn write_later(&self, order: Ordering, new_value: impl Fn($value) -> $value + 'static) {
                let this: *const Self = self;
                let write = move || {
                    // SAFETY: the model's instance exists until all its threads have ended, and its
                    // atomics do not move.
                    let this = unsafe { &*this };
                    let new_value = |now| Some(new_value(now));
                    let _ = this.atomic.fetch_update(order, Ordering::Relaxed, new_value);
                    this.witnesses.note_write();
                };
                DELAYED.with(|delayed| delayed.borrow_mut().push(Box::new(write)));
            }

            #[track_caller]
            pub(crate) fn swap(&self, value: $value, order: Ordering) -> $value {
                self.modify(order, |atomic, order| atomic.swap(value, order), move |_| value)
            }
        }
    };
}

macro_rules! arithmetic {
    ($($name:ident, $value:ty, $moved:expr;)*) => {$(
        atomic!($name, $value, atomic::$name, 0, $moved);

        #[allow(dead_code, reason = "every type has all operations")]
        impl $name {
            #[track_caller]
            pub(crate) fn fetch_or(&self, value: $value, order: Ordering) -> $value {
                self.modify(order, |atomic, order| atomic.fetch_or(value, order), move |now| now | value)
            }

            #[track_caller]
            pub(crate) fn fetch_xor(&self, value: $value, order: Ordering) -> $value {
                self.modify(order, |atomic, order| atomic.fetch_xor(value, order), move |now| now ^ value)
            }

            #[track_caller]
            pub(crate) fn fetch_and(&self, value: $value, order: Ordering) -> $value {
                self.modify(order, |atomic, order| atomic.fetch_and(value, order), move |now| now & value)
            }

            #[track_caller]
            pub(crate) fn fetch_add(&self, value: $value, order: Ordering) -> $value {
                self.modify(order, |atomic, order| atomic.fetch_add(value, order), move |now| now.wrapping_add(value))
            }

            #[track_caller]
            pub(crate) fn fetch_sub(&self, value: $value, order: Ordering) -> $value {
                self.modify(order, |atomic, order| atomic.fetch_sub(value, order), move |now| now.wrapping_sub(value))
            }

            #[track_caller]
            pub(crate) fn fetch_max(&self, value: $value, order: Ordering) -> $value {
                self.modify(order, |atomic, order| atomic.fetch_max(value, order), move |now| now.max(value))
            }
        }
    )*};
}

arithmetic! {
    AtomicU8, u8, |now: u8, from, to: u8| now.wrapping_add(to.wrapping_sub(from));
    AtomicU32, u32, |now: u32, from, to: u32| now.wrapping_add(to.wrapping_sub(from));
    AtomicU64, u64, |now: u64, from: u64, to: u64| now ^ from ^ to;
    AtomicUsize, usize, |now: usize, from, to: usize| now.wrapping_add(to.wrapping_sub(from));
}
atomic!(AtomicPtr<T>, *mut T, atomic::AtomicPtr<T>, core::ptr::null_mut(), |_, _, to| to);

/// A pointer to a piece of the directory. After the pointer was *settled*, it is not written any
/// more, and loom does not track its loads. In models that add no pieces, tracked loads would only
/// make loom switch threads more often.
pub(crate) struct PiecePtr<T> {
    modelled: AtomicPtr<T>,
    settled: std::sync::atomic::AtomicPtr<T>,
}

impl<T: 'static> PiecePtr<T> {
    pub(crate) fn new(value: *mut T) -> PiecePtr<T> {
        let settled = std::sync::atomic::AtomicPtr::new(core::ptr::null_mut());
        PiecePtr { modelled: AtomicPtr::new(value), settled }
    }

    /// Declares that the pointer will not be written any more.
    pub(crate) fn end_installs(&self) {
        self.settled.store(self.modelled.load(Ordering::Acquire), Ordering::Relaxed);
    }

    #[track_caller]
    pub(crate) fn load(&self, order: Ordering) -> *mut T {
        let settled = self.settled.load(Ordering::Relaxed);
        if settled.is_null() { self.modelled.load(order) } else { settled }
    }

    #[track_caller]
    pub(crate) fn store(&self, value: *mut T, order: Ordering) {
        self.modelled.store(value, order);
    }
}

#[track_caller]
pub(crate) fn fence(order: Ordering) {
    if weakened(order) != Ordering::Relaxed {
        atomic::fence(order);
    }
}
