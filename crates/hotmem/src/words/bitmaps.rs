//! Defines the frames of memory that hold frame bitmaps, and the pointers to them.
//!
//! A CPU that has looked up a bitmap may use the bitmap at any later time: an allocation takes
//! frames from the pageblock that a hint names, and a hint may be old. So bitmaps lie in frames of
//! boot memory, and stay for as long as the instance exists. These are the *lasting* bitmaps.
//! Only if boot memory has no free frame do bitmaps lie in the memory that they describe. These are
//! the *self-hosted* bitmaps. Only CPUs that have counted a hiding step use them (see
//! `frames/exhaustion.rs`). When their memory is removed, they are dropped at a time at which no
//! hiding step is in flight.

use super::FrameBitmap;
use super::frame_word::FrameWord;
use super::last_change::LastChange;
use super::word_bits::FreedBits;
use crate::addr::Pfn;
#[cfg(not(loom))]
use crate::geometry::FRAME_SIZE;
use crate::geometry::{BITMAP_FRAMES, BITMAP_GROUP, BITMAP_WORDS, PAGEBLOCK_FRAMES};
#[cfg(loom)]
use crate::sync::untracked;
use crate::sync::{AtomicPtr, Ordering, fence, mutant};
use core::ptr::{null_mut, without_provenance_mut};

/// One frame of memory that holds the bitmaps of neighbouring pageblocks.
#[repr(C)]
pub(crate) struct BitmapFrame {
    bitmaps: [FrameBitmap; BITMAP_GROUP],
    /// 1 if the frame contains zeroes: for the models, in which each frame of memory has this type.
    /// This is not one of loom's atomics, so it orders no accesses.
    #[cfg(loom)]
    is_zero: untracked::AtomicU64,
}

#[cfg(not(any(loom, hotmem_geometry = "small")))]
const _: () = assert!(size_of::<BitmapFrame>() as u64 == FRAME_SIZE);
#[cfg(not(loom))]
const _: () = assert!(size_of::<BitmapFrame>() as u64 <= FRAME_SIZE);

/// The pointers to the bitmaps of the pageblocks of one section.
#[repr(transparent)]
pub(crate) struct Bitmaps([BitmapPtr; BITMAP_FRAMES]);

/// A pointer to a frame of bitmaps. The lowest bit is set for lasting bitmaps, so that one test
/// tells them from self-hosted bitmaps and from a null pointer. While self-hosted bitmaps are hidden,
/// the value is `HIDDEN`: no look-up finds bitmaps, and no other bitmaps are installed.
#[repr(transparent)]
pub(crate) struct BitmapPtr(AtomicPtr<BitmapFrame>);

const LASTING: usize = 1;
const HIDDEN: usize = 2;

impl BitmapPtr {
    #[cfg(loom)]
    fn new() -> BitmapPtr {
        BitmapPtr(AtomicPtr::new(null_mut()))
    }

    /// Returns the bitmaps, and whether they are self-hosted bitmaps. Acquire pairs with the
    /// Release of [`install`](Self::install).
    pub(crate) fn load(&self) -> (*mut BitmapFrame, bool) {
        let tagged = self.0.load(Ordering::Acquire);
        let bitmaps = tagged.map_addr(|address| address & !(LASTING | HIDDEN));
        (bitmaps, !bitmaps.is_null() && tagged.addr() & LASTING == 0)
    }

    /// Stores the pointer, if none is stored yet. Returns whether this call has stored it. Release:
    /// a reader that finds the pointer finds the bitmaps initialised.
    pub(crate) fn install(&self, bitmaps: *mut BitmapFrame, is_self_hosted: bool) -> bool {
        let tagged = bitmaps.map_addr(|address| address | if is_self_hosted { 0 } else { LASTING });
        self.0.compare_exchange(null_mut(), tagged, Ordering::Release, Ordering::Relaxed).is_ok()
    }

    /// Hides self-hosted bitmaps from look-ups, until [`restore`](Self::restore) or
    /// [`drop_hidden`](Self::drop_hidden). Returns the value that `restore` needs, or `None` if the
    /// pointer leads to no self-hosted bitmaps. For the control path only.
    pub(crate) fn hide(&self) -> Option<HiddenBitmaps> {
        let tagged = self.0.load(Ordering::Relaxed);
        if tagged.is_null() || tagged.addr() & LASTING != 0 {
            return None;
        }
        mutant!("bitmaps are installed where self-hosted bitmaps are hidden" => {
            self.0.store(null_mut(), Ordering::Release);
            fence(Ordering::SeqCst);
            return Some(HiddenBitmaps(tagged));
        });
        self.0.store(without_provenance_mut(HIDDEN), Ordering::Release);
        fence(Ordering::SeqCst); // pairs with the fence in `CallContext::bitmap_of`
        Some(HiddenBitmaps(tagged))
    }

    /// Completes [`hide`](Self::hide): from now on, other bitmaps may be installed. Release pairs with
    /// the Acquire of [`load`](Self::load): the pageblocks were drained before.
    pub(crate) fn drop_hidden(&self) {
        self.0.store(null_mut(), Ordering::Release);
    }

    /// Undoes [`hide`](Self::hide).
    pub(crate) fn restore(&self, hidden: HiddenBitmaps) {
        self.0.store(hidden.0, Ordering::Release);
    }
}

/// A pointer to a word of lasting bitmaps. The pointer may also be used to reach all other words in
/// the same frame of bitmaps.
#[derive(Clone, Copy)]
pub(crate) struct WordPtr(pub(super) *mut FrameWord);

impl WordPtr {
    /// Returns the free of `bits` as it would be now, or `None` if one of these bits is set already.
    /// Changes nothing. `last_change`, which is the caller's, then names this word, without its value.
    #[inline(always)]
    pub(crate) fn plan_free(self, bits: u64, last_change: &LastChange) -> Option<FreedBits> {
        self.get().plan_free(bits, last_change)
    }

    /// Returns the word.
    #[inline(always)]
    pub(super) fn get(&self) -> &FrameWord {
        // SAFETY: the pointer leads to a word of lasting bitmaps, which stay for as long as the
        // instance exists.
        unsafe { &*self.0 }
    }

    /// Returns whether the word has a mark.
    #[inline(always)]
    pub(crate) fn is_marked(self) -> bool {
        self.get().is_marked()
    }

    /// Returns this word and those after it, `count` words in all, if its bitmap has so many.
    #[inline(always)]
    pub(super) fn words(&self, count: usize) -> Option<&[FrameWord]> {
        if self.get().index() + count > BITMAP_WORDS {
            return None;
        }
        // SAFETY: as in `get`; and the pointer may be used to reach the other words of the bitmap,
        // which has at least `count` words from this one on.
        Some(unsafe { core::slice::from_raw_parts(self.0, count) })
    }

    /// Frees the frames of `freed`, a plan with the same `last_change`, if the word has the value that
    /// the plan is based on. Otherwise returns false, and changes nothing.
    #[inline(always)]
    pub(crate) fn free(self, freed: FreedBits, last_change: &LastChange) -> bool {
        self.get().free_as(freed, last_change)
    }
}

/// Self-hosted bitmaps that were hidden.
pub(crate) struct HiddenBitmaps(*mut BitmapFrame);

impl Bitmaps {
    #[cfg(loom)]
    pub(super) fn new() -> Bitmaps {
        Bitmaps(core::array::from_fn(|_| BitmapPtr::new()))
    }

    /// Returns the pointer to the bitmaps of pageblock `bit`, a number below 64.
    pub(crate) fn pointer_of(&self, bit: usize) -> &BitmapPtr {
        &self.0[bit / BITMAP_GROUP % BITMAP_FRAMES]
    }

    /// Iterates over the pointers, each with the number of the first pageblock that its bitmaps
    /// describe.
    pub(crate) fn pointers(&self) -> impl Iterator<Item = (usize, &BitmapPtr)> {
        (0..).step_by(BITMAP_GROUP).zip(&self.0)
    }

    /// Returns the frame of memory that holds the bitmap of pageblock `bit`, if it is a lasting
    /// bitmap. Acquire: as in [`BitmapPtr::load`].
    #[inline(always)]
    fn lasting_frame(&self, bit: usize) -> Option<*mut BitmapFrame> {
        let tagged = self.pointer_of(bit).0.load(Ordering::Acquire);
        (tagged.addr() & LASTING != 0).then(|| tagged.wrapping_byte_sub(LASTING))
    }

    /// Returns the bitmap of pageblock `bit`, if it is a lasting bitmap.
    #[inline]
    pub(crate) fn lasting(&self, bit: usize) -> Option<&FrameBitmap> {
        let frame = self.lasting_frame(bit)?;
        // SAFETY: `CallContext::install_bitmaps` has stored the pointer, and it leads to a frame of boot
        // memory that holds these bitmaps for as long as the instance exists.
        unsafe { &*frame }.bitmaps.get(bit % BITMAP_GROUP)
    }

    /// Returns a pointer to word `word` of the bitmap of pageblock `bit`, if it is a lasting
    /// bitmap.
    #[inline]
    pub(crate) fn lasting_word(&self, bit: usize, word: usize) -> Option<WordPtr> {
        let frame = self.lasting_frame(bit)?;
        let offset = bit % BITMAP_GROUP * size_of::<FrameBitmap>() + word * size_of::<FrameWord>();
        Some(WordPtr(frame.wrapping_byte_add(offset).cast()))
    }

    /// Returns the bitmap of pageblock `bit`, if it has one.
    ///
    /// # Safety
    /// The caller is the control path; or the bitmap is a lasting one; or the caller has counted a
    /// hiding step and passed a `SeqCst` fence before this call, and does not use the bitmap after
    /// the end of the hiding step.
    pub(crate) unsafe fn lasting_or_self_hosted(&self, bit: usize) -> Option<&FrameBitmap> {
        let (bitmaps, _) = self.pointer_of(bit).load();
        // SAFETY: null, or lasting bitmaps as in `lasting`, or self-hosted bitmaps: only the
        // control path drops self-hosted bitmaps, and it waits for all hiding steps that may have
        // seen the pointer.
        let frame = unsafe { bitmaps.as_ref() }?;
        frame.bitmaps.get(bit % BITMAP_GROUP)
    }

    /// Returns whether pageblock `bit` has no bitmap yet.
    #[inline]
    pub(crate) fn is_missing(&self, bit: usize) -> bool {
        // Acquire: as in `load`.
        self.pointer_of(bit).0.load(Ordering::Acquire).is_null()
    }

    /// Returns whether the bitmap of pageblock `bit` is a self-hosted bitmap.
    pub(crate) fn is_self_hosted(&self, bit: usize) -> bool {
        self.pointer_of(bit).load().1
    }
}

impl BitmapFrame {
    #[cfg(loom)]
    pub(crate) fn new() -> BitmapFrame {
        let bitmaps = core::array::from_fn(|_| FrameBitmap::new());
        BitmapFrame { bitmaps, is_zero: untracked::AtomicU64::new(0) }
    }

    /// Initialises all bitmaps: no frame is free, and all words are held. `start` is the first
    /// frame of the first pageblock. Only for the code that installs the bitmaps.
    pub(crate) fn clear(&self, start: Pfn) {
        #[cfg(loom)]
        self.is_zero.store(0, Ordering::Relaxed);
        let starts = (start.number()..).step_by(PAGEBLOCK_FRAMES);
        self.bitmaps.iter().zip(starts).for_each(|(bitmap, start)| bitmap.init(start));
    }

    /// Tells loom that the owner of the frame writes to it. loom then reports if another thread
    /// accesses the bitmaps at the same time.
    #[cfg(loom)]
    pub(crate) fn overwrite(&self) {
        self.is_zero.store(0, Ordering::Relaxed);
        self.bitmaps.iter().for_each(FrameBitmap::overwrite);
    }

    /// Fills the frame with zeroes, as its owner.
    #[cfg(loom)]
    pub(crate) fn zero(&self) {
        self.overwrite();
        self.is_zero.store(1, Ordering::Relaxed);
    }

    /// Returns whether the frame contains zeroes.
    #[cfg(loom)]
    pub(crate) fn is_zero(&self) -> bool {
        self.is_zero.load(Ordering::Relaxed) != 0
    }
}
