//! Invariants of Hotmem's crates: conditions that only a bug in these crates can break, or a caller
//! that breaks the contract of an `unsafe` function.
//!
//! A build with debug assertions panics at a violation. Other builds count it and continue with the
//! value that does the least harm, which each call site chooses. [`violated_invariants`] is 0 on a
//! healthy machine. Conditions that a caller, a device or the firmware can cause are not
//! invariants; they are reported as errors.

#![no_std]

use core::panic::Location;
use core::ptr::null_mut;
use core::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};

static VIOLATED: AtomicUsize = AtomicUsize::new(0);
static FIRST: AtomicPtr<Location<'static>> = AtomicPtr::new(null_mut());

/// Returns how many violations were counted, over all machines of this process. A kernel that reads
/// more than 0 should report the [`first_violation`] and restart.
#[must_use]
pub fn violated_invariants() -> u64 {
    VIOLATED.load(Ordering::Relaxed) as u64
}

/// Returns where in the source an invariant first did not hold.
#[must_use]
pub fn first_violation() -> Option<&'static Location<'static>> {
    // SAFETY: the pointer is null, or `count` made it from a `&'static Location`. Acquire pairs
    // with its Release.
    unsafe { FIRST.load(Ordering::Acquire).as_ref() }
}

/// Records a violation: panics with debug assertions, counts otherwise.
#[cold]
#[inline(never)]
#[track_caller]
fn violated() {
    if cfg!(debug_assertions) {
        panic!("an invariant does not hold");
    }
    count(Location::caller());
}

fn count(place: &'static Location<'static>) {
    let place = core::ptr::from_ref(place).cast_mut();
    // Release pairs with `first_violation`. Only the first location is kept.
    let _first = FIRST.compare_exchange(null_mut(), place, Ordering::Release, Ordering::Relaxed);
    VIOLATED.fetch_add(1, Ordering::Relaxed);
}

/// A value that is known to be present, or an operation that is known to have succeeded. The engine
/// and the crates that bind it to devices use this for their own state only, never for answers of a
/// device, the firmware or a caller.
pub trait Known {
    /// The type of the value.
    type Value;

    /// Returns the value. If there is none, an invariant is violated: a build with debug assertions
    /// panics, other builds count it in [`violated_invariants`] and return `None`.
    fn known(self) -> Option<Self::Value>;
}

impl<T> Known for Option<T> {
    type Value = T;

    #[inline(always)]
    #[track_caller]
    fn known(self) -> Option<T> {
        if self.is_none() {
            violated();
        }
        self
    }
}

impl<T, E> Known for Result<T, E> {
    type Value = T;

    #[inline(always)]
    #[track_caller]
    fn known(self) -> Option<T> {
        self.ok().known()
    }
}

/// Returns `invariant`, and records a violation if it is false.
#[inline(always)]
#[track_caller]
pub fn holds(invariant: bool) -> bool {
    if !invariant {
        violated();
    }
    invariant
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_true_invariant_is_not_counted() {
        assert_eq!(Some(3).known(), Some(3));
        assert_eq!(Ok::<_, ()>(4).known(), Some(4));
        assert!(holds(true));
    }

    #[test]
    #[cfg_attr(debug_assertions, should_panic(expected = "an invariant"))]
    fn a_violated_invariant_panics_or_is_counted_with_its_location() {
        let before = violated_invariants();
        let here = line!() + 1;
        assert_eq!(None::<u8>.known(), None);
        assert_eq!(Err::<u8, _>(7).known(), None);
        assert!(!holds(false));
        assert_eq!(violated_invariants(), before + 3);
        let first = first_violation().unwrap();
        assert_eq!((first.file(), first.line()), (file!(), here));
    }
}

/// The example in the README, compiled and run.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
