//! Selects the atomics of each build. A model uses loom's atomics. The build that counts cache line
//! transfers uses the processor's atomics, and counts all accesses. All other builds use the
//! processor's atomics.

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

/// Atomics that the threads of a model do not write, or whose values affect no other access. They
/// are never loom's atomics, so that loom does not track their loads.
pub(crate) mod untracked {
    #[cfg(loom)]
    pub(crate) use super::plain::AtomicU8;
    pub(crate) use super::plain::{AtomicPtr, AtomicU64, AtomicUsize};
}

/// Defines a `const fn`. Under loom it is a plain `fn`, since loom's atomics cannot be made at
/// compile time.
macro_rules! const_unless_loom {
    ($(#[$meta:meta])* $vis:vis fn $name:ident($($arg:ident: $ty:ty),* $(,)?) -> $ret:ty $body:block) => {
        #[cfg(not(loom))]
        $(#[$meta])* $vis const fn $name($($arg: $ty),*) -> $ret $body
        #[cfg(loom)]
        $(#[$meta])* $vis fn $name($($arg: $ty),*) -> $ret $body
    };
}
pub(crate) use const_unless_loom;

/// Makes an array of `$len` values of `$make`, at compile time except under loom.
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

/// Executes the statement `$wrong` if the mutant `$name` is active. Only builds with loom have
/// mutants. If a mutant is active, a scenario must fail (see `loom_tests/mutants.txt`).
macro_rules! mutant {
    ($name:literal => $wrong:expr) => {
        #[cfg(loom)]
        if $crate::sync::is_mutant($name) {
            $wrong
        }
    };
}
pub(crate) use mutant;

/// Tells the processor (or loom) that the caller repeats a loop until another CPU has made
/// progress.
pub(crate) fn spin_hint() {
    #[cfg(loom)]
    loom::thread::yield_now();
    #[cfg(not(loom))]
    core::hint::spin_loop();
}

/// Orders an earlier `SeqCst` write before a later `SeqCst` load. Without loom, this does nothing,
/// since all `SeqCst` accesses have one order. loom treats `SeqCst` accesses as `AcqRel` ones, so
/// under loom this is a fence.
#[cfg_attr(loom, track_caller)]
pub(crate) fn sequential() {
    #[cfg(loom)]
    fence(Ordering::SeqCst);
}
