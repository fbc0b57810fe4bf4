//! Defines atomics that count writes. They also count the writes of a CPU to a cache line that
//! another CPU wrote last.
//!
//! For tests that are built with `--cfg hotmem_atomics="counted"`. The CPUs are simulated: one
//! thread calls [`run_as`] to become another CPU. A processor transfers such a cache line from the
//! other CPU's cache. When many CPUs use an allocator, these transfers are what slows it down.

use super::Ordering;
use core::sync::atomic;
use std::cell::{Cell, RefCell};
use std::collections::HashMap;

/// The bytes of a cache line.
const LINE: usize = 64;

std::thread_local! {
    static CPU: Cell<usize> = const { Cell::new(0) };
    /// The CPU that wrote each line last.
    static WRITERS: RefCell<HashMap<usize, usize>> = RefCell::new(HashMap::new());
    static WRITES: Cell<Writes> = const { Cell::new(Writes { all: 0, transfers: 0 }) };
}

/// The numbers of writes to atomics, failed exchanges included.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Writes {
    /// All writes.
    pub all: u64,
    /// Those to lines that another CPU wrote last.
    pub transfers: u64,
}

/// Makes the calling thread simulate this CPU from now on.
pub fn run_as(cpu: usize) {
    CPU.set(cpu);
}

/// Returns the writes of the calling thread since the last call.
pub fn take_writes() -> Writes {
    WRITES.take()
}

fn count<T>(atomic: &T) {
    let (cpu, line) = (CPU.get(), core::ptr::from_ref(atomic).addr() / LINE);
    let last = WRITERS.with_borrow_mut(|writers| writers.insert(line, cpu));
    let Writes { all, transfers } = WRITES.get();
    let is_transfer = last.is_some_and(|last| last != cpu);
    WRITES.set(Writes { all: all + 1, transfers: transfers + u64::from(is_transfer) });
}

/// An atomic with these writes, each of which is counted and made.
macro_rules! counted {
    (
        $name:ident $(<$T:ident>)?, $value:ty, $atomic:ty;
        $($write:ident($($arg:ident: $type:ty),*) -> $result:ty;)*
    ) => {
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

            $(pub(crate) fn $write(&self, $($arg: $type),*) -> $result {
                count(self);
                self.0.$write($($arg),*)
            })*
        }
    };
}

/// The writes that every atomic has, and those in `$more`.
macro_rules! atomic {
    ($name:ident $(<$T:ident>)?, $value:ty, $atomic:ty $(; $more:ident)*) => {
        counted! {
            $name $(<$T>)?, $value, $atomic;
            store(value: $value, order: Ordering) -> ();
            swap(value: $value, order: Ordering) -> $value;
            compare_exchange(now: $value, new: $value, done: Ordering, not: Ordering)
                -> Result<$value, $value>;
            compare_exchange_weak(now: $value, new: $value, done: Ordering, not: Ordering)
                -> Result<$value, $value>;
            $($more(value: $value, order: Ordering) -> $value;)*
        }
    };
}

macro_rules! arithmetic {
    ($($name:ident, $value:ty;)*) => {$(
        atomic!(
            $name, $value, atomic::$name;
            fetch_or; fetch_xor; fetch_and; fetch_add; fetch_sub; fetch_max
        );
    )*};
}

arithmetic! {
    AtomicU8, u8;
    AtomicU16, u16;
    AtomicU32, u32;
    AtomicU64, u64;
    AtomicUsize, usize;
}
atomic!(AtomicPtr<T>, *mut T, atomic::AtomicPtr<T>);
