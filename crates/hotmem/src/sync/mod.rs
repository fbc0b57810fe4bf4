//! Atomics: the processor's; in a model, loom's; in the build that counts cache line transfers, the
//! processor's with all writes counted.

#[cfg(loom)]
mod model;
#[cfg(loom)]
mod mutants;
#[cfg(loom)]
pub(crate) use model::{
    AtomicPtr, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering, PiecePtr, THREADS,
    begin_thread, fence,
};
#[cfg(loom)]
pub(crate) use mutants::is_mutant;

#[cfg(hotmem_atomics = "counted")]
pub mod counted;

#[cfg(not(hotmem_atomics = "counted"))]
use core::sync::atomic as plain;
#[cfg(hotmem_atomics = "counted")]
use counted as plain;

#[cfg(not(loom))]
pub(crate) use core::sync::atomic::{Ordering, fence};
#[cfg(not(loom))]
pub(crate) use plain::{
    AtomicPtr, AtomicPtr as PiecePtr, AtomicU8, AtomicU32, AtomicU64, AtomicUsize,
};

/// Atomics that no thread of a model writes, or that hide nothing, whatever they say. They are never
/// loom's, which therefore does not track their loads.
pub(crate) mod settled {
    #[cfg(loom)]
    pub(crate) use super::plain::AtomicU8;
    pub(crate) use super::plain::{AtomicPtr, AtomicU16, AtomicU64, AtomicUsize};
}

/// A `const fn`, except under loom, whose atomics cannot be made at compile time.
macro_rules! const_unless_loom {
    ($(#[$meta:meta])* $vis:vis fn $name:ident($($arg:ident: $ty:ty),* $(,)?) -> $ret:ty $body:block) => {
        #[cfg(not(loom))]
        $(#[$meta])* $vis const fn $name($($arg: $ty),*) -> $ret $body
        #[cfg(loom)]
        $(#[$meta])* $vis fn $name($($arg: $ty),*) -> $ret $body
    };
}
pub(crate) use const_unless_loom;

/// An array of what `$make` makes: at compile time, except under loom.
macro_rules! array_of {
    ($make:expr; $len:expr) => {{
        #[cfg(not(loom))]
        let array = [const { $make }; $len];
        #[cfg(loom)]
        let array = core::array::from_fn::<_, { $len }, _>(|_| $make);
        array
    }};
}
pub(crate) use array_of;

/// A statement that is executed only in the mutant of this name, which only loom knows, and which a
/// scenario must notice (see `loom_tests/mutants.txt`).
macro_rules! mutant {
    ($name:literal => $wrong:expr) => {
        #[cfg(loom)]
        if $crate::sync::is_mutant($name) {
            $wrong
        }
    };
}
pub(crate) use mutant;

/// Tells the processor (or loom) that the caller is going round in a loop.
#[inline]
pub(crate) fn spin_hint() {
    #[cfg(loom)]
    loom::thread::yield_now();
    #[cfg(not(loom))]
    core::hint::spin_loop();
}

/// Stands between a `SeqCst` access that writes and one that reads. It is a fence for loom, which
/// treats `SeqCst` accesses as `AcqRel` ones; on processors, the accesses themselves are in one
/// order.
#[inline]
#[cfg_attr(loom, track_caller)]
pub(crate) fn sequential() {
    #[cfg(loom)]
    fence(Ordering::SeqCst);
}
