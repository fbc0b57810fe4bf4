//! The place of descriptors: one slot for each frame of a range.

use crate::layout::MapLayout;
use core::{fmt, marker::PhantomData, mem::MaybeUninit, ptr::NonNull, slice};
use hotmem_addr::{Pfn, PfnRange};

/// The slots of a range of frames, in order, side by side in virtual memory.
pub struct Slots<'m, D> {
    range: PfnRange,
    base: NonNull<MaybeUninit<D>>,
    /// Which of them are there, if not all.
    only: Option<MapLayout>,
    memory: PhantomData<&'m mut [MaybeUninit<D>]>,
}

/// Why slots cannot be those of a range.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SlotsError {
    /// There are more or fewer of them than frames.
    Count {
        /// The frames.
        range: PfnRange,
        /// How many slots.
        slots: usize,
    },
    /// The slots of so many frames are more than there can be addresses.
    TooLarge(PfnRange),
    /// The base is not aligned as descriptors are.
    Misaligned(PfnRange),
}

// SAFETY: it stands for an exclusive borrow of the slots.
unsafe impl<D: Send> Send for Slots<'_, D> {}

impl<'m, D> Slots<'m, D> {
    /// These slots, one for each frame of `range`.
    ///
    /// # Errors
    /// [`SlotsError::Count`] if they are not as many.
    pub fn of(range: PfnRange, slots: &'m mut [MaybeUninit<D>]) -> Result<Self, SlotsError> {
        if u64::try_from(slots.len()) != Ok(range.frames()) {
            return Err(SlotsError::Count { range, slots: slots.len() });
        }
        let base = NonNull::from(slots).cast();
        Ok(Slots { range, base, only: None, memory: PhantomData })
    }

    /// The slots from `base` on, of which only those need be there that `layout` has mapped: those
    /// that its compounds share are skipped. It is that of the [`Memmap`](crate::Memmap) that
    /// describes them, which refuses them otherwise.
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

    /// The frames.
    #[must_use]
    pub const fn range(&self) -> PfnRange {
        self.range
    }

    /// Whether all that descriptors in this layout are written to is there.
    pub(crate) fn suits(&self, layout: &MapLayout) -> bool {
        self.only.is_none_or(|only| only == *layout)
    }

    /// The slots below `pfn` and those from `pfn` on, for two CPUs.
    #[must_use]
    pub fn split_at(self, pfn: Pfn) -> (Self, Self) {
        let (low, high) = self.range.split_at(pfn);
        // SAFETY: at most the slots' end.
        let base = unsafe { self.base.add(index(low.frames())) };
        (Slots { range: low, ..self }, Slots { range: high, base, ..self })
    }

    /// Cut into `parts` of about the same size, at multiples of `frames` (a power of two); fewer
    /// if there are not so many multiples. For several CPUs, which describe a part each.
    pub fn parts(self, parts: u64, frames: u64) -> impl Iterator<Item = Slots<'m, D>> {
        let each = self.range.frames().div_ceil(parts.max(1));
        let mut rest = Some(self);
        core::iter::from_fn(move || {
            let slots = rest.take().filter(|slots| !slots.range.is_empty())?;
            let to = slots.range.start().checked_add(each).unwrap_or(Pfn::LIMIT);
            let (part, more) = slots.split_at(to.align_up(frames));
            rest = Some(more);
            Some(part)
        })
    }

    /// Takes the slots of the next `frames` frames, which must be a part of them.
    pub(crate) fn take(&mut self, frames: u64) -> &'m mut [MaybeUninit<D>] {
        let base = self.base;
        let frames = self.skip(frames);
        // SAFETY: these slots lie within the range and, as whoever takes them knows, have frames
        // of their own; `skip` saw to it that nobody takes them again.
        unsafe { slice::from_raw_parts_mut(base.as_ptr(), frames) }
    }

    /// Where the slot lies that comes after the next `frames` frames; it may be beyond the last.
    pub(crate) fn ahead(&self, frames: u64) -> *const MaybeUninit<D> {
        self.base.as_ptr().wrapping_add(index(frames))
    }

    /// Passes over the slots of so many frames, or as many as there are; how many.
    pub(crate) fn skip(&mut self, frames: u64) -> usize {
        let to = self.range.start().checked_add(frames).unwrap_or(Pfn::LIMIT);
        let (skipped, rest) = self.range.split_at(to);
        let frames = index(skipped.frames());
        // SAFETY: at most the slots' end.
        self.base = unsafe { self.base.add(frames) };
        self.range = rest;
        frames
    }
}

/// A number of slots, which fits because they can all be addressed.
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
            SlotsError::TooLarge(range) => write!(f, "no room in memory for slots of {range}"),
            SlotsError::Misaligned(range) => write!(f, "the slots of {range} are misaligned"),
        }
    }
}

impl core::error::Error for SlotsError {}
