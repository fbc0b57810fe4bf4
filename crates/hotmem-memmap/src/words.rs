//! Descriptors as 64-bit words.

use core::{array, mem::MaybeUninit, slice};
use hotmem_stream::Stream;

/// The words of a descriptor: `[u64; N]`.
///
/// They must be as large as the descriptor, which must be aligned to them:
///
/// ```compile_fail,E0080
/// # use hotmem_addr::PfnRange;
/// # use hotmem_memmap::*;
/// # struct Device;
/// impl Describe for Device {
///     type Descriptor = [u64; 7];
///     type Words = [u64; 8];
///     // …
/// #   fn words(&self, _: &Frame) -> [u64; 8] {
/// #       [0; 8]
/// #   }
/// }
/// # let slots = Slots::of(PfnRange::EMPTY, &mut []).unwrap();
/// # Memmap::new(Kind::Generic, Compound::SINGLE, &Device).describe(slots);
/// ```
///
/// ```compile_fail,E0080
/// # use hotmem_addr::PfnRange;
/// # use hotmem_memmap::*;
/// # struct Device;
/// impl Describe for Device {
///     type Descriptor = [u8; 64];
///     type Words = [u64; 8];
///     // …
/// #   fn words(&self, _: &Frame) -> [u64; 8] {
/// #       [0; 8]
/// #   }
/// }
/// # let slots = Slots::of(PfnRange::EMPTY, &mut []).unwrap();
/// # Memmap::new(Kind::Generic, Compound::SINGLE, &Device).describe(slots);
/// ```
pub trait Words: Copy + Arithmetic {}

impl<const N: usize> Words for [u64; N] {}

/// The arithmetic on words. The trait is sealed because it is not exported.
pub trait Arithmetic: Sized {
    /// Writes the words by ordinary stores.
    fn write<D>(&self, slot: &mut MaybeUninit<D>);

    /// Fills `slots` through a stream: `self` first, and each further descriptor greater by `step`.
    fn fill<'env, D>(&self, step: &Self, stream: &Stream<'env>, slots: &'env mut [MaybeUninit<D>]);

    /// Returns the difference from `self` to `next`.
    fn step_to(&self, next: &Self) -> Self;

    /// Returns `self` after `steps` steps.
    fn after(&self, steps: u64, step: &Self) -> Self;

    /// Returns whether both are equal. Compares in registers, where `==` would call `memcmp`.
    fn is(&self, other: &Self) -> bool;
}

/// Checks at compile time that descriptors consist of words.
struct Fits<D, W>(D, W);

impl<D, W> Fits<D, W> {
    const CHECKED: () = {
        assert!(size_of::<D>() == size_of::<W>(), "a descriptor must be as large as its words");
        assert!(size_of::<D>() > 0, "a descriptor must not be empty");
        assert!(align_of::<D>() >= align_of::<W>(), "a descriptor must be aligned as its words");
    };
}

impl<const N: usize> Arithmetic for [u64; N] {
    #[inline(always)]
    fn write<D>(&self, slot: &mut MaybeUninit<D>) {
        for slot in as_words(slice::from_mut(slot)) {
            slot.write(*self);
        }
    }

    #[inline(always)]
    fn fill<'env, D>(&self, step: &Self, stream: &Stream<'env>, slots: &'env mut [MaybeUninit<D>]) {
        stream.fill(as_words(slots), self, step);
    }

    #[inline(always)]
    fn step_to(&self, next: &Self) -> Self {
        array::from_fn(|i| next[i].wrapping_sub(self[i]))
    }

    #[inline(always)]
    fn after(&self, steps: u64, step: &Self) -> Self {
        array::from_fn(|i| self[i].wrapping_add(step[i].wrapping_mul(steps)))
    }

    #[inline(always)]
    fn is(&self, other: &Self) -> bool {
        self.iter().zip(other).fold(0, |differs, (a, b)| differs | a ^ b) == 0
    }
}

/// Returns the slots as words.
#[inline(always)]
fn as_words<D, const N: usize>(slots: &mut [MaybeUninit<D>]) -> &mut [MaybeUninit<[u64; N]>] {
    const { Fits::<D, [u64; N]>::CHECKED };
    // SAFETY: the same bytes, as `Fits` has checked, and none of them need be initialised on
    // either side: any words may be written where there may be a `D`.
    unsafe { slice::from_raw_parts_mut(slots.as_mut_ptr().cast(), slots.len()) }
}
