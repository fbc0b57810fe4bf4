//! Descriptors as what is really written: 64-bit words.

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

/// What is done with words; sealed by not being nameable.
pub trait Arithmetic: Sized {
    /// Ordinary stores.
    fn write<D>(&self, slot: &mut MaybeUninit<D>);

    /// `self`, and each further descriptor by `step` further, into a stream.
    fn fill<'env, D>(&self, step: &Self, stream: &Stream<'env>, slots: &'env mut [MaybeUninit<D>]);

    /// What must be added to `self` to get `next`.
    fn step_to(&self, next: &Self) -> Self;

    /// `self` after so many steps.
    fn after(&self, steps: u64, step: &Self) -> Self;

    /// Whether both are the same. In registers, where `==` would call out to compare memory.
    fn is(&self, other: &Self) -> bool;
}

/// Refuses descriptors that are not made of words, when the program is compiled.
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

/// The same memory as words.
#[inline(always)]
fn as_words<D, const N: usize>(slots: &mut [MaybeUninit<D>]) -> &mut [MaybeUninit<[u64; N]>] {
    const { Fits::<D, [u64; N]>::CHECKED };
    // SAFETY: the same bytes, as `Fits` has checked, and none of them need be initialised on
    // either side: any words may be written where there may be a `D`.
    unsafe { slice::from_raw_parts_mut(slots.as_mut_ptr().cast(), slots.len()) }
}
