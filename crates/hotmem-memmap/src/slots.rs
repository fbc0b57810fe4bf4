//! Slots: the memory that descriptors are written to, one slot for each frame of a range.

use crate::kind::Compound;
use crate::layout::MapLayout;
use core::{fmt, marker::PhantomData, mem::MaybeUninit, ptr::NonNull, slice};
use hotmem_addr::{Pfn, PfnRange};

/// The slots of a range of frames, in order and contiguous in virtual memory.
pub struct Slots<'m, D> {
    range: PfnRange,
    base: NonNull<MaybeUninit<D>>,
    /// The layout that says which slots are mapped, if not all of them.
    only: Option<MapLayout>,
    memory: PhantomData<&'m mut [MaybeUninit<D>]>,
}

/// The reason why slots do not match a range.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SlotsError {
    /// The number of slots is not the number of frames.
    Count {
        /// The frames.
        range: PfnRange,
        /// The number of slots.
        slots: usize,
    },
    /// The slots of this range do not fit the address space.
    TooLarge(PfnRange),
    /// The base is not aligned for a descriptor.
    Misaligned(PfnRange),
}

// SAFETY: the value stands for an exclusive borrow of the slots.
unsafe impl<D: Send> Send for Slots<'_, D> {}

impl<'m, D> Slots<'m, D> {
    /// Takes these slots, one for each frame of `range`.
    ///
    /// # Errors
    /// [`SlotsError::Count`] if the numbers differ.
    pub fn of(range: PfnRange, slots: &'m mut [MaybeUninit<D>]) -> Result<Self, SlotsError> {
        if u64::try_from(slots.len()) != Ok(range.frames()) {
            return Err(SlotsError::Count { range, slots: slots.len() });
        }
        let base = NonNull::from(slots).cast();
        Ok(Slots { range, base, only: None, memory: PhantomData })
    }

    /// Takes the slots from `base` on. Only those that `layout` backs by frames of their own need
    /// be mapped; shared ones are skipped. A [`Memmap`](crate::Memmap) refuses slots of another
    /// layout than its own.
    ///
    /// # Errors
    /// [`SlotsError`] if they could not be addressed.
    ///
    /// # Safety
    /// For `'m`, every slot of `range` that [`layout.pages`](MapLayout::pages) backs by a frame of
    /// its own may be written from `base` on, and nobody else uses it.
    pub unsafe fn mapped(
        range: PfnRange,
        base: NonNull<D>,
        layout: &MapLayout,
    ) -> Result<Self, SlotsError> {
        let bytes =
            usize::try_from(range.frames()).ok().and_then(|n| n.checked_mul(size_of::<D>()));
        let end = bytes.filter(|&bytes| isize::try_from(bytes).is_ok());
        if end.and_then(|bytes| base.addr().get().checked_add(bytes)).is_none() {
            return Err(SlotsError::TooLarge(range));
        }
        if !base.as_ptr().is_aligned() {
            return Err(SlotsError::Misaligned(range));
        }
        let only = Some(*layout).filter(MapLayout::shares_tails);
        Ok(Slots { range, base: base.cast(), only, memory: PhantomData })
    }

    /// Returns the frames.
    #[must_use]
    pub const fn range(&self) -> PfnRange {
        self.range
    }

    /// Returns whether every slot that this layout writes is mapped.
    pub(crate) fn suits(&self, layout: &MapLayout) -> bool {
        self.only.is_none_or(|only| only == *layout)
    }

    /// Splits the slots into those below `pfn` and those from `pfn` on, which two CPUs may use at
    /// once.
    #[must_use]
    pub fn split_at(self, pfn: Pfn) -> (Self, Self) {
        let (low, high) = self.range.split_at(pfn);
        // SAFETY: this is at most the end of the slots.
        let base = unsafe { self.base.add(index(low.frames())) };
        (Slots { range: low, ..self }, Slots { range: high, base, ..self })
    }

    /// Splits the slots into `parts` of about the same size, so that several CPUs can describe one
    /// part each. A compound page is in one part. Yields fewer parts if there are not enough
    /// compound pages.
    pub fn parts(self, parts: u64, compound: Compound) -> impl Iterator<Item = Slots<'m, D>> {
        let each = self.range.frames().div_ceil(parts.max(1));
        let mut rest = Some(self);
        core::iter::from_fn(move || {
            let slots = rest.take().filter(|slots| !slots.range.is_empty())?;
            let to = slots.range.start().checked_add(each).unwrap_or(Pfn::LIMIT);
            let (part, more) = slots.split_at(to.align_up(compound.frames()));
            rest = Some(more);
            Some(part)
        })
    }

    /// Takes the slots of the next `frames` frames, of which there must be enough.
    pub(crate) fn take(&mut self, frames: u64) -> &'m mut [MaybeUninit<D>] {
        let base = self.base;
        let frames = self.skip(frames);
        // SAFETY: these slots lie within the range and, as the caller ensures, are backed by frames
        // of their own. `skip` has advanced past them, so they are taken once.
        unsafe { slice::from_raw_parts_mut(base.as_ptr(), frames) }
    }

    /// Returns the address of the slot after the next `frames` frames. It may lie beyond the last
    /// slot.
    pub(crate) fn ahead(&self, frames: u64) -> *const MaybeUninit<D> {
        self.base.as_ptr().wrapping_add(index(frames))
    }

    /// Skips the slots of `frames` frames, or as many as there are. Returns how many it skipped.
    pub(crate) fn skip(&mut self, frames: u64) -> usize {
        let to = self.range.start().checked_add(frames).unwrap_or(Pfn::LIMIT);
        let (skipped, rest) = self.range.split_at(to);
        let frames = index(skipped.frames());
        // SAFETY: this is at most the end of the slots.
        self.base = unsafe { self.base.add(frames) };
        self.range = rest;
        frames
    }
}

/// Returns a number of slots as an index. It fits because all slots are addressable.
#[allow(clippy::cast_possible_truncation, reason = "both constructors have checked it")]
const fn index(frames: u64) -> usize {
    frames as usize
}

impl<D> fmt::Debug for Slots<'_, D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Slots").field(&self.range).finish()
    }
}

impl fmt::Display for SlotsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SlotsError::Count { range, slots } => {
                write!(f, "{slots} slots for the {} frames of {range}", range.frames())
            }
            SlotsError::TooLarge(range) => {
                write!(f, "the slots of {range} do not fit the address space")
            }
            SlotsError::Misaligned(range) => write!(f, "the slots of {range} are misaligned"),
        }
    }
}

impl core::error::Error for SlotsError {}
