//! The bitmap: which frames of a pageblock are free.

#[cfg(not(loom))]
use crate::geometry::FRAME_SIZE;
use crate::geometry::{
    BITMAP_WORD_BITS, BITMAP_WORDS, PAGEBLOCK_FRAMES, SECTION_PAGEBLOCKS, bits_of, mask,
};
use crate::sync::{AtomicU64, Ordering, spin_hint};
use core::ops::Range;

/// Which frames of a pageblock are free: a set bit is a free frame. One cache line.
#[repr(C)]
pub(crate) struct FrameBitmap {
    words: [AtomicU64; BITMAP_WORDS],
    /// Lets loom see that whoever writes a whole bitmap is alone with it.
    #[cfg(loom)]
    alone: loom::cell::UnsafeCell<()>,
}

/// One frame of memory that holds the bitmaps of a section's pageblocks.
#[repr(C)]
pub(crate) struct BitmapFrame {
    pub(super) bitmaps: [FrameBitmap; SECTION_PAGEBLOCKS],
}

#[cfg(not(any(loom, hotmem_geometry = "small")))]
const _: () = assert!(size_of::<BitmapFrame>() as u64 == FRAME_SIZE);
#[cfg(not(loom))]
const _: () = assert!(size_of::<BitmapFrame>() as u64 <= FRAME_SIZE);

impl FrameBitmap {
    /// The bitmap's words, lowest frames first.
    #[inline]
    pub(crate) fn words(&self) -> &[AtomicU64; BITMAP_WORDS] {
        &self.words
    }

    /// Owner only: every frame free but those of `taken` and the one that was `lent` for bitmaps
    /// (all relative to the pageblock).
    ///
    /// Relaxed: published by the Release store of the block state that follows.
    pub(crate) fn write(&self, taken: Range<usize>, lent: Option<usize>) {
        #[cfg(loom)]
        self.alone.with_mut(|_| ());
        for (i, word) in self.words.iter().enumerate() {
            let of_word = |frames: Range<usize>| {
                let low = frames.start.saturating_sub(i * BITMAP_WORD_BITS).min(BITMAP_WORD_BITS);
                let high = frames.end.saturating_sub(i * BITMAP_WORD_BITS).min(BITMAP_WORD_BITS);
                mask(high) & !mask(low)
            };
            let lent = lent.map_or(0, |frame| of_word(frame..frame + 1));
            let free = mask(BITMAP_WORD_BITS) & !of_word(taken.clone()) & !lent;
            word.store(free, Ordering::Relaxed);
        }
    }

    /// Takes `bits` of one word, if all are free. Acquire: pairs with [`give`](Self::give), so that
    /// the new holder of the frames comes after the old one.
    #[inline]
    pub(crate) fn take(&self, word: usize, bits: u64) -> bool {
        self.shared();
        let word = &self.words[word];
        let mut now = word.load(Ordering::Relaxed);
        while now & bits == bits {
            match word.compare_exchange_weak(now, now & !bits, Ordering::Acquire, Ordering::Relaxed)
            {
                Ok(_) => return true,
                Err(seen) => now = seen,
            }
        }
        false
    }

    /// Takes the first free frame. The caller holds a credit for it. Acquire: see
    /// [`take`](Self::take).
    #[inline]
    pub(crate) fn take_any(&self) -> usize {
        self.shared();
        // A credit promises a free bit, but others may take the one that was seen; each time that
        // happens somebody has got on, and the promise holds for what is left.
        loop {
            for (i, word) in self.words.iter().enumerate() {
                let mut now = word.load(Ordering::Relaxed);
                while now != 0 {
                    let rest = now & (now - 1);
                    match word.compare_exchange_weak(
                        now,
                        rest,
                        Ordering::Acquire,
                        Ordering::Relaxed,
                    ) {
                        Ok(_) => return i * BITMAP_WORD_BITS + now.trailing_zeros() as usize,
                        Err(seen) => now = seen,
                    }
                }
            }
            spin_hint();
        }
    }

    /// Takes the first `left` free frames, which the caller holds credits for, and names each.
    /// Acquire: see [`take`](Self::take).
    pub(crate) fn take_many(&self, mut left: usize, mut each: impl FnMut(usize)) {
        self.shared();
        // As in `take_any`: what others take was not promised to the caller.
        loop {
            for (i, word) in self.words.iter().enumerate() {
                let mut now = word.load(Ordering::Relaxed);
                while now != 0 && left > 0 {
                    let taken = lowest(now, left);
                    match word.compare_exchange_weak(
                        now,
                        now & !taken,
                        Ordering::Acquire,
                        Ordering::Relaxed,
                    ) {
                        Ok(_) => {
                            left -= taken.count_ones() as usize;
                            bits_of(taken).for_each(|bit| each(i * BITMAP_WORD_BITS + bit));
                            now &= !taken;
                        }
                        Err(seen) => now = seen,
                    }
                }
            }
            if left == 0 {
                return;
            }
            spin_hint();
        }
    }

    /// Gives `bits` of one word back, if none of them is free already. Release: pairs with
    /// [`take`](Self::take).
    #[inline]
    pub(crate) fn give(&self, word: usize, bits: u64) -> bool {
        self.shared();
        let word = &self.words[word];
        let mut now = word.load(Ordering::Relaxed);
        while now & bits == 0 {
            match word.compare_exchange_weak(now, now | bits, Ordering::Release, Ordering::Relaxed)
            {
                Ok(_) => return true,
                Err(seen) => now = seen,
            }
        }
        false
    }

    /// How many frames are free by the bits. Exact only while nothing is in flight.
    pub(crate) fn free_frames(&self) -> usize {
        self.words.iter().map(|w| w.load(Ordering::Relaxed).count_ones() as usize).sum()
    }

    #[inline]
    fn shared(&self) {
        #[cfg(loom)]
        self.alone.with(|_| ());
    }
}

/// The lowest `n` of the set bits; all of them if there are no more.
fn lowest(word: u64, n: usize) -> u64 {
    let rest = (0..n).fold(word, |rest, _| rest & rest.wrapping_sub(1));
    word & !rest
}

impl BitmapFrame {
    /// The installer only: every frame of every pageblock is taken.
    pub(crate) fn clear(&self) {
        self.bitmaps.iter().for_each(|bitmap| bitmap.write(0..PAGEBLOCK_FRAMES, None));
    }
}

#[cfg(loom)]
impl BitmapFrame {
    pub(crate) fn new() -> BitmapFrame {
        BitmapFrame {
            bitmaps: core::array::from_fn(|_| FrameBitmap {
                words: core::array::from_fn(|_| AtomicU64::new(0)),
                alone: loom::cell::UnsafeCell::new(()),
            }),
        }
    }

    /// What whoever holds the frame does with it: loom sees if anybody else has it as well.
    pub(crate) fn overwrite(&self) {
        for bitmap in &self.bitmaps {
            bitmap.alone.with_mut(|_| ());
        }
    }
}
/// A run of frames of a pageblock as words of its bitmap.
#[inline]
pub(crate) fn words_of(frames: Range<usize>) -> impl Iterator<Item = (usize, u64)> + Clone {
    let words = frames.start / BITMAP_WORD_BITS..frames.end.div_ceil(BITMAP_WORD_BITS);
    let words = if frames.is_empty() { 0..0 } else { words };
    words.map(move |word| {
        let base = word * BITMAP_WORD_BITS;
        let from = frames.start.saturating_sub(base);
        let to = (frames.end - base).min(BITMAP_WORD_BITS);
        (word, mask(to) & !mask(from))
    })
}
