//! The processor's atomics, with every write counted: which CPU writes which cache line.
//!
//! For tests built with `--cfg hotmem_atomics="counted"`. The CPUs are simulated: one thread says
//! before each step as which of them it goes on. A line that another CPU has written last must come
//! from that CPU's cache; such writes are what an allocator pays for many CPUs.

use super::Ordering;
use core::sync::atomic;
use std::cell::{Cell, RefCell};
use std::collections::HashMap;

/// The bytes of a cache line.
const LINE: usize = 64;

std::thread_local! {
    static CPU: Cell<usize> = const { Cell::new(0) };
    static WRITERS: RefCell<HashMap<usize, usize>> = RefCell::new(HashMap::new());
    static COUNTS: Cell<Writes> = const { Cell::new(Writes { all: 0, foreign: 0 }) };
}

/// A number of writes to atomics, failed exchanges among them.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Writes {
    /// All writes.
    pub all: u64,
    /// Those to lines that another CPU has written last.
    pub foreign: u64,
}

/// Makes the calling thread go on as this CPU.
pub fn run_as(cpu: usize) {
    CPU.set(cpu);
}

/// Returns the writes of the calling thread since the last call.
pub fn take_writes() -> Writes {
    COUNTS.take()
}

fn count<T>(atomic: &T) {
    let (cpu, line) = (CPU.get(), core::ptr::from_ref(atomic).addr() / LINE);
    let last = WRITERS.with_borrow_mut(|writers| writers.insert(line, cpu));
    let counts = COUNTS.get();
    let foreign = u64::from(last.is_some_and(|last| last != cpu));
    COUNTS.set(Writes { all: counts.all + 1, foreign: counts.foreign + foreign });
}

macro_rules! counted {
    ($name:ident $(<$T:ident>)?, $value:ty, $atomic:ty) => {
        #[repr(transparent)]
        pub(crate) struct $name $(<$T>)? ($atomic);

        #[allow(dead_code, reason = "every type has all operations")]
        impl $(<$T>)? $name $(<$T>)? {
            pub(crate) const fn new(value: $value) -> Self {
                Self(<$atomic>::new(value))
            }

            pub(crate) fn load(&self, order: Ordering) -> $value {
                self.0.load(order)
            }

            pub(crate) fn store(&self, value: $value, order: Ordering) {
                count(self);
                self.0.store(value, order);
            }

            pub(crate) fn swap(&self, value: $value, order: Ordering) -> $value {
                count(self);
                self.0.swap(value, order)
            }

            pub(crate) fn compare_exchange(
                &self,
                current: $value,
                new: $value,
                success: Ordering,
                failure: Ordering,
            ) -> Result<$value, $value> {
                count(self);
                self.0.compare_exchange(current, new, success, failure)
            }

            pub(crate) fn compare_exchange_weak(
                &self,
                current: $value,
                new: $value,
                success: Ordering,
                failure: Ordering,
            ) -> Result<$value, $value> {
                count(self);
                self.0.compare_exchange_weak(current, new, success, failure)
            }
        }
    };
}

macro_rules! arithmetic {
    ($($name:ident, $value:ty;)*) => {$(
        counted!($name, $value, atomic::$name);

        #[allow(dead_code, reason = "every type has all operations")]
        impl $name {
            pub(crate) fn fetch_or(&self, value: $value, order: Ordering) -> $value {
                count(self);
                self.0.fetch_or(value, order)
            }

            pub(crate) fn fetch_xor(&self, value: $value, order: Ordering) -> $value {
                count(self);
                self.0.fetch_xor(value, order)
            }

            pub(crate) fn fetch_and(&self, value: $value, order: Ordering) -> $value {
                count(self);
                self.0.fetch_and(value, order)
            }

            pub(crate) fn fetch_add(&self, value: $value, order: Ordering) -> $value {
                count(self);
                self.0.fetch_add(value, order)
            }

            pub(crate) fn fetch_sub(&self, value: $value, order: Ordering) -> $value {
                count(self);
                self.0.fetch_sub(value, order)
            }

            pub(crate) fn fetch_max(&self, value: $value, order: Ordering) -> $value {
                count(self);
                self.0.fetch_max(value, order)
            }
        }
    )*};
}

arithmetic! {
    AtomicU8, u8;
    AtomicU16, u16;
    AtomicU32, u32;
    AtomicU64, u64;
    AtomicUsize, usize;
}
counted!(AtomicPtr<T>, *mut T, atomic::AtomicPtr<T>);
