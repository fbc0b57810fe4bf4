//! What the engine knows to be so: if it is not, the engine has a fault, or somebody has broken the
//! promise behind [`DirectMap`](crate::DirectMap) and freed what was not theirs.
//!
//! A build with debug assertions panics there. Any other goes on with what does the least harm, as
//! it is written at the place, and counts it: [`violated_invariants`] is 0 on a machine that is
//! well. What a caller, a device or the firmware can bring about is not known in this sense; it is
//! an error, or an answer.

use crate::sync::Ordering;
use crate::sync::settled::{AtomicPtr, AtomicU64};
use core::panic::Location;
use core::ptr::null_mut;

static VIOLATED: AtomicU64 = AtomicU64::new(0);
static FIRST: AtomicPtr<Location<'static>> = AtomicPtr::new(null_mut());

/// How often an invariant of the engine did not hold, on any machine of this process. A kernel that
/// finds more than 0 here had better report it, with the [`first_violation`], and restart.
#[must_use]
pub fn violated_invariants() -> u64 {
    VIOLATED.load(Ordering::Relaxed)
}

/// Where in the engine's source an invariant first did not hold.
#[must_use]
pub fn first_violation() -> Option<&'static Location<'static>> {
    // SAFETY: null, or made from such a reference by `count`. Acquire pairs with it.
    unsafe { FIRST.load(Ordering::Acquire).as_ref() }
}

/// An invariant does not hold.
#[cold]
#[track_caller]
pub(crate) fn violated() {
    if cfg!(debug_assertions) {
        panic!("an invariant of the engine does not hold");
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

/// Whether what is known to hold does hold.
#[inline(always)]
#[track_caller]
pub(crate) fn holds(invariant: bool) -> bool {
    if !invariant {
        violated();
    }
    invariant
}

#[cfg(all(test, not(loom)))]
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
