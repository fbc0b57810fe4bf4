//! Checks the invariants of Hotmem's crates. An invariant is a condition that is false only if one of
//! these crates has a bug, or if a caller breaks the contract of an `unsafe` function.
//!
//! A build with debug assertions panics at a violation. Other builds count the violation, and the code
//! that made the check continues with the value that does the least harm. [`violated_invariants`] is 0
//! on a healthy machine. A condition that a caller, a device or the firmware can make false is not an
//! invariant: the crates report such a condition as an error.

#![no_std]

use core::panic::Location;
use core::ptr::null_mut;
use core::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};

static VIOLATIONS: AtomicUsize = AtomicUsize::new(0);
static FIRST_LOCATION: AtomicPtr<Location<'static>> = AtomicPtr::new(null_mut());

/// Returns how many violations were counted, over all machines of this process. If the number is not
/// 0, a kernel should report the [`first_violation`] and restart.
#[must_use]
pub fn violated_invariants() -> u64 {
    VIOLATIONS.load(Ordering::Relaxed) as u64
}

/// Returns the place in the source of the first violation, or `None` if no violation was counted.
#[must_use]
pub fn first_violation() -> Option<&'static Location<'static>> {
    // SAFETY: the pointer is null, or `count_violation` made it from a `&'static Location`. Acquire
    // pairs with Release in `count_violation`.
    unsafe { FIRST_LOCATION.load(Ordering::Acquire).as_ref() }
}

/// Records a violation: panics in builds with debug assertions, and counts it in other builds.
#[cold]
#[inline(never)]
#[track_caller]
fn record_violation() {
    if cfg!(debug_assertions) {
        panic!("an invariant does not hold");
    }
    count_violation(Location::caller());
}

fn count_violation(location: &'static Location<'static>) {
    let location = core::ptr::from_ref(location).cast_mut();
    // Store the location only if it is the first one. Release pairs with Acquire in
    // `first_violation`.
    let _is_first =
        FIRST_LOCATION.compare_exchange(null_mut(), location, Ordering::Release, Ordering::Relaxed);
    VIOLATIONS.fetch_add(1, Ordering::Relaxed);
}

/// A value that is known to be present, or an operation that is known to have succeeded. Hotmem's
/// crates use this trait for their own state only, never for input from a device, the firmware or a
/// caller.
pub trait Known {
    /// The type of the value.
    type Value;

    /// Returns the value. If the value is absent, an invariant is violated: a build with debug
    /// assertions panics, and other builds count the violation in [`violated_invariants`] and return
    /// `None`.
    fn known(self) -> Option<Self::Value>;
}

impl<T> Known for Option<T> {
    type Value = T;

    #[inline(always)]
    #[track_caller]
    fn known(self) -> Option<T> {
        if self.is_none() {
            record_violation();
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
        record_violation();
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
