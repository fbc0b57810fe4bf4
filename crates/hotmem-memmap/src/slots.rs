//! Divides and lends the memory that descriptors are written to: one slot for each frame of a range.

use crate::kind::Compound;
use crate::layout::MapLayout;
use core::{fmt, marker::PhantomData, mem::MaybeUninit, ptr::NonNull, slice};
use hotmem_addr::{Pfn, PfnRange};

/// The slots of a range of frames, in order and contiguous in virtual memory.
pub struct Slots<'m, D> {
    range: PfnRange,
    base: NonNull<MaybeUninit<D>>,
    /// The layout that determines which slots are mapped, or `None` if all slots are mapped.
    partial_layout: Option<MapLayout>,
    memory: PhantomData<&'m mut [MaybeUninit<D>]>,
}

/// The reason why slots do not match a range.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SlotsError {
    /// The number of slots differs from the number of frames.
    Count {
        /// The range of frames.
        range: PfnRange,
        /// The number of slots.
        slots: usize,
    },
    /// The slots of this range do not fit the address space.
    TooLarge(PfnRange),
    /// The base is not aligned for a descriptor.
    Misaligned(PfnRange),
}

// SAFETY: `Slots` is an exclusive borrow of the slots, as `&mut [MaybeUninit<D>]` is.
unsafe impl<D: Send> Send for Slots<'_, D> {}

impl<'m, D> Slots<'m, D> {
    /// Borrows these slots, one for each frame of `range`.
    ///
    /// # Errors
    /// [`SlotsError::Count`] if the numbers differ.
    pub fn of(range: PfnRange, slots: &'m mut [MaybeUninit<D>]) -> Result<Self, SlotsError> {
        if u64::try_from(slots.len()) != Ok(range.frames()) {
            return Err(SlotsError::Count { range, slots: slots.len() });
        }
        let base = NonNull::from(slots).cast();
        Ok(Slots { range, base, partial_layout: None, memory: PhantomData })
    }

    /// Borrows the slots of `range`, the first of which lies at `base`. Slots in pages that `layout`
    /// backs by the frame of shared tails need not be mapped, because they are skipped. If some slots
    /// need not be mapped, a [`Memmap`](crate::Memmap) with another layout refuses the slots.
    ///
    /// # Errors
    /// [`SlotsError`] if the slots do not fit the address space, or if `base` is misaligned.
    ///
    /// # Safety
    /// For `'m`, every slot of `range` in a page that [`layout.pages`](MapLayout::pages) marks as
    /// [`Backing::OwnFrame`](crate::Backing::OwnFrame) is mapped and writable, and nothing else
    /// uses it.
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
        let partial_layout = Some(*layout).filter(MapLayout::shares_tails);
        Ok(Slots { range, base: base.cast(), partial_layout, memory: PhantomData })
    }

    /// Returns the range of frames.
    #[must_use]
    pub const fn range(&self) -> PfnRange {
        self.range
    }

    /// Returns whether every slot that a [`Memmap`](crate::Memmap) with `layout` writes is mapped.
    pub(crate) fn are_mapped_for(&self, layout: &MapLayout) -> bool {
        self.partial_layout.is_none_or(|partial| partial == *layout)
    }

    /// Splits the slots into the slots of the frames below `pfn` and from `pfn` on. Two CPUs may use
    /// the two parts at the same time.
    #[must_use]
    pub fn split_at(self, pfn: Pfn) -> (Self, Self) {
        let (low, high) = self.range.split_at(pfn);
        // SAFETY: the result is at most the end of the slots, because `low` lies within `range`.
        let base = unsafe { self.base.add(index(low.frames())) };
        (Slots { range: low, ..self }, Slots { range: high, base, ..self })
    }

    /// Splits the slots into `parts` parts of about the same size, so that several CPUs can describe
    /// one part each. No compound page is divided between parts. Yields fewer parts if there are
    /// fewer compound pages.
    pub fn parts(self, parts: u64, compound: Compound) -> impl Iterator<Item = Slots<'m, D>> {
        let part_frames = self.range.frames().div_ceil(parts.max(1));
        let mut remaining = Some(self);
        core::iter::from_fn(move || {
            let slots = remaining.take().filter(|slots| !slots.range.is_empty())?;
            let end = slots.range.start().checked_add(part_frames).unwrap_or(Pfn::LIMIT);
            let (part, after_part) = slots.split_at(end.align_up(compound.frames()));
            remaining = Some(after_part);
            Some(part)
        })
    }

    /// Removes and returns the slots of the next `frames` frames. The caller ensures that `self` has
    /// so many frames, and that their slots are mapped.
    pub(crate) fn take(&mut self, frames: u64) -> &'m mut [MaybeUninit<D>] {
        let base = self.base;
        let frames = self.skip(frames);
        // SAFETY: the slots lie within the range, and the caller ensures that they are mapped. `skip`
        // has advanced `base` past these slots, so no other call returns them.
        unsafe { slice::from_raw_parts_mut(base.as_ptr(), frames) }
    }

    /// Returns the address of the slot after the next `frames` frames. The address may lie beyond the
    /// last slot.
    pub(crate) fn address_after(&self, frames: u64) -> *const MaybeUninit<D> {
        self.base.as_ptr().wrapping_add(index(frames))
    }

    /// Skips the slots of the next `frames` frames, or of all frames if there are fewer. Returns how
    /// many slots were skipped.
    pub(crate) fn skip(&mut self, frames: u64) -> usize {
        let end = self.range.start().checked_add(frames).unwrap_or(Pfn::LIMIT);
        let (skipped, remaining) = self.range.split_at(end);
        let frames = index(skipped.frames());
        // SAFETY: the result is at most the end of the slots, because `skipped` lies within `range`.
        self.base = unsafe { self.base.add(frames) };
        self.range = remaining;
        frames
    }
}

/// Converts a number of slots to an index. The number fits, because all slots are addressable.
#[allow(clippy::cast_possible_truncation, reason = "both constructors have checked the number")]
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
                write!(f, "{range} has {} frames, but there are {slots} slots", range.frames())
            }
            SlotsError::TooLarge(range) => {
                write!(f, "the slots of {range} do not fit the address space")
            }
            SlotsError::Misaligned(range) => write!(f, "the slots of {range} are misaligned"),
        }
    }
}

impl core::error::Error for SlotsError {}
