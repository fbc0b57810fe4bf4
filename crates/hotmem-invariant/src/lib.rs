#![doc = include_str!("../README.md")]
//!
//! # In detail
//!
//! Checks the invariants of Hotmem's crates. An invariant is a condition that is false only if one of
//! these crates has a bug, or if a caller breaks the contract of an `unsafe` function.
//!
//! A build with debug assertions panics at a violation. Other builds count the violation, and the code
//! that made the check continues with the value that does the least harm. [`violated_invariants`]
//! returns their number, which is 0 on a healthy machine. A condition that a caller, a device or the
//! firmware can make false is not an invariant: the crates report such a condition as an error.

#![no_std]

use core::panic::Location;
use core::ptr::null_mut;
use core::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};

static VIOLATIONS: AtomicUsize = AtomicUsize::new(0);
static FIRST_LOCATION: AtomicPtr<Location<'static>> = AtomicPtr::new(null_mut());

/// The violations of invariants that were counted, over all instances of this process.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Violations {
    /// The number of violations.
    pub count: u64,
    /// The place in the source of the first violation.
    pub first: Option<&'static Location<'static>>,
}

/// Returns the violations that were counted. If their number is not 0, a kernel should report the
/// first one and restart.
#[must_use]
pub fn violated_invariants() -> Violations {
    let count = VIOLATIONS.load(Ordering::Acquire) as u64;
    // SAFETY: the pointer is null, or `count_violation` made it from a `&'static Location`. Acquire
    // pairs with Release in `count_violation`.
    let first = unsafe { FIRST_LOCATION.load(Ordering::Acquire).as_ref() };
    Violations { count, first }
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
    // `violated_invariants`.
    let _is_first =
        FIRST_LOCATION.compare_exchange(null_mut(), location, Ordering::Release, Ordering::Relaxed);
    // Release pairs with Acquire in `violated_invariants`: whoever sees the count sees the location.
    VIOLATIONS.fetch_add(1, Ordering::Release);
}

/// A value that is known to be present, or an operation that is known to have succeeded. Hotmem's
/// crates use this trait for their own state only, never for input from a device, the firmware or a
/// caller.
pub trait OrRecordViolation {
    /// The type of the value.
    type Value;

    /// Returns the value. If the value is absent, an invariant is violated: a build with debug
    /// assertions panics, and other builds count the violation in [`violated_invariants`] and return
    /// `None`.
    fn or_record_violation(self) -> Option<Self::Value>;
}

impl<T> OrRecordViolation for Option<T> {
    type Value = T;

    #[inline(always)]
    #[track_caller]
    fn or_record_violation(self) -> Option<T> {
        if self.is_none() {
            record_violation();
        }
        self
    }
}

impl<T, E> OrRecordViolation for Result<T, E> {
    type Value = T;

    #[inline(always)]
    #[track_caller]
    fn or_record_violation(self) -> Option<T> {
        self.ok().or_record_violation()
    }
}

/// Returns `invariant`, and records a violation if it is false.
#[inline(always)]
#[track_caller]
pub fn check_invariant(invariant: bool) -> bool {
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
        assert_eq!(Some(3).or_record_violation(), Some(3));
        assert_eq!(Ok::<_, ()>(4).or_record_violation(), Some(4));
        assert!(check_invariant(true));
    }

    #[test]
    #[cfg_attr(debug_assertions, should_panic(expected = "an invariant"))]
    fn a_violated_invariant_panics_or_is_counted_with_its_location() {
        let before = violated_invariants().count;
        let first_line = line!() + 1;
        assert_eq!(None::<u8>.or_record_violation(), None);
        assert_eq!(Err::<u8, _>(7).or_record_violation(), None);
        assert!(!check_invariant(false));
        let Violations { count, first } = violated_invariants();
        let first = first.unwrap();
        assert_eq!(count, before + 3);
        assert_eq!((first.file(), first.line()), (file!(), first_line));
    }
}
