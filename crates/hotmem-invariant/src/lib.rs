//! Invariants of Hotmem's crates: conditions that only a fault of theirs can break, or a caller that
//! breaks the promise of an `unsafe` function.
//!
//! A build with debug assertions panics there. Any other goes on with what does the least harm, as
//! it is written at the place, and counts it: [`violated_invariants`] is 0 on a machine that is
//! well. What a caller, a device or the firmware can bring about is not known in this sense; it is
//! an error, or an answer.

#![no_std]

use core::panic::Location;
use core::ptr::null_mut;
use core::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};

static VIOLATED: AtomicUsize = AtomicUsize::new(0);
static FIRST: AtomicPtr<Location<'static>> = AtomicPtr::new(null_mut());

/// How often an invariant did not hold, on any machine of this process. A kernel that
/// finds more than 0 here had better report it, with the [`first_violation`], and restart.
#[must_use]
pub fn violated_invariants() -> u64 {
    VIOLATED.load(Ordering::Relaxed) as u64
}

/// Where in the source an invariant first did not hold.
#[must_use]
pub fn first_violation() -> Option<&'static Location<'static>> {
    // SAFETY: null, or made from such a reference by `count`. Acquire pairs with it.
    unsafe { FIRST.load(Ordering::Acquire).as_ref() }
}

/// Notes that an invariant does not hold: panics with debug assertions, counts otherwise.
#[cold]
#[track_caller]
fn violated() {
    if cfg!(debug_assertions) {
        panic!("an invariant does not hold");
    }
    count(Location::caller());
}

fn count(place: &'static Location<'static>) {
    let place = core::ptr::from_ref(place).cast_mut();
    // Release pairs with `first_violation`. Only the first stays.
    let _first = FIRST.compare_exchange(null_mut(), place, Ordering::Release, Ordering::Relaxed);
    VIOLATED.fetch_add(1, Ordering::Relaxed);
}

/// Something that is known to be there, or to have succeeded: for the engine, and for the crates
/// that bind it to a device and free or commit what it gave them. An answer of a device, of the
/// firmware or of a caller is not known in this sense.
pub trait Known {
    /// What is there.
    type Value;

    /// What is there. If nothing is, an invariant does not hold: a build with debug assertions
    /// panics, any other counts it in [`violated_invariants`].
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

/// Returns whether a condition holds that is known to hold, and notes it if it does not.
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
    fn what_holds_is_not_counted() {
        assert_eq!(Some(3).known(), Some(3));
        assert_eq!(Ok::<_, ()>(4).known(), Some(4));
        assert!(holds(true));
    }

    #[test]
    #[cfg_attr(debug_assertions, should_panic(expected = "an invariant"))]
    fn what_does_not_hold_panics_or_is_counted_with_its_place() {
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
