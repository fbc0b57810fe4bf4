//! Writes descriptors as arrays of 64-bit words.

use core::{array, mem::MaybeUninit, slice};
use hotmem_stream::Stream;

/// The words of a descriptor: `[u64; N]`.
///
/// The words must be as large as the descriptor, and the descriptor must be at least as aligned as a
/// word. These two programs do not compile:
///
/// ```compile_fail,E0080
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

/// The arithmetic on words. Other crates cannot implement [`Words`], because this trait is not
/// exported.
pub trait Arithmetic: Sized {
    /// Writes the words by ordinary stores.
    fn write<D>(&self, slot: &mut MaybeUninit<D>);

    /// Fills `slots` through a stream: the first slot with `self`, and each further slot with the
    /// words of the previous slot plus `step`.
    fn fill<'env, D>(&self, step: &Self, stream: &Stream<'env>, slots: &'env mut [MaybeUninit<D>]);

    /// Returns `next - self`, word by word.
    fn step_to(&self, next: &Self) -> Self;

    /// Returns `self + steps × step`, word by word.
    fn after(&self, steps: u64, step: &Self) -> Self;

    /// Returns whether `self` and `other` are equal. Compares in registers, because `==` would call
    /// `memcmp`.
    fn equals(&self, other: &Self) -> bool;
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
    fn equals(&self, other: &Self) -> bool {
        self.iter().zip(other).fold(0, |differs, (a, b)| differs | a ^ b) == 0
    }
}

/// Returns the slots as words.
#[inline(always)]
fn as_words<D, const N: usize>(slots: &mut [MaybeUninit<D>]) -> &mut [MaybeUninit<[u64; N]>] {
    const { Fits::<D, [u64; N]>::CHECKED };
    // SAFETY: `Fits` has checked that `D` and the words have the same size, and that `D` is at least
    // as aligned. Both sides are `MaybeUninit`, so any bytes are valid before and after a write.
    unsafe { slice::from_raw_parts_mut(slots.as_mut_ptr().cast(), slots.len()) }
}
