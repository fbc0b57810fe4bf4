//! Defines atomics that count loads and writes, and the writes to a cache line that another CPU
//! wrote last.
//!
//! Tests that are built with `--cfg hotmem_atomics="counted"` use them. The CPUs are simulated: the
//! test's thread calls [`run_as`] to act as another CPU. If a CPU writes to a line that another CPU
//! wrote last, a processor transfers the line from the other CPU's cache. These transfers make an
//! allocator slow when many CPUs use it.

use super::Ordering;
use core::sync::atomic;
use std::cell::{Cell, RefCell};
use std::collections::HashMap;

/// The size of a cache line.
const LINE_BYTES: usize = 64;

std::thread_local! {
    static CPU: Cell<usize> = const { Cell::new(0) };
    /// The CPU that wrote each line last.
    static WRITERS: RefCell<HashMap<usize, usize>> = RefCell::new(HashMap::new());
    static ACCESSES: Cell<Accesses> =
        const { Cell::new(Accesses { loads: 0, writes: 0, transfers: 0 }) };
}

/// The number of accesses to atomics.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Accesses {
    /// The number of loads.
    pub loads: u64,
    /// The number of writes, failed compare-exchanges included.
    pub writes: u64,
    /// The number of writes to cache lines that another CPU wrote last.
    pub transfers: u64,
}

/// Makes the calling thread act as CPU number `cpu` from now on.
pub fn run_as(cpu: usize) {
    CPU.set(cpu);
}

/// Returns the number of accesses of the calling thread since the last call of this function.
pub fn take_accesses() -> Accesses {
    ACCESSES.take()
}

fn count_load() {
    let now = ACCESSES.get();
    ACCESSES.set(Accesses { loads: now.loads + 1, ..now });
}

fn count_write<T>(atomic: &T) {
    let (cpu, line) = (CPU.get(), core::ptr::from_ref(atomic).addr() / LINE_BYTES);
    let last = WRITERS.with_borrow_mut(|writers| writers.insert(line, cpu));
    let Accesses { loads, writes, transfers } = ACCESSES.get();
    let transfers = transfers + u64::from(last.is_some_and(|last| last != cpu));
    ACCESSES.set(Accesses { loads, writes: writes + 1, transfers });
}

/// Defines an atomic type whose operations `$write` count a write and then make it.
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
                count_load();
                self.0.load(order)
            }

            $(pub(crate) fn $write(&self, $($arg: $type),*) -> $result {
                count_write(self);
                self.0.$write($($arg),*)
            })*
        }
    };
}

/// Defines an atomic type with the writes that all atomics have, and those of `$more`.
macro_rules! atomic {
    ($name:ident $(<$T:ident>)?, $value:ty, $atomic:ty $(; $more:ident)*) => {
        counted! {
            $name $(<$T>)?, $value, $atomic;
            store(value: $value, order: Ordering) -> ();
            swap(value: $value, order: Ordering) -> $value;
            compare_exchange(now: $value, new: $value, success: Ordering, failure: Ordering)
                -> Result<$value, $value>;
            compare_exchange_weak(now: $value, new: $value, success: Ordering, failure: Ordering)
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
    AtomicU32, u32;
    AtomicU64, u64;
    AtomicUsize, usize;
}
atomic!(AtomicPtr<T>, *mut T, atomic::AtomicPtr<T>);
