//! Implements the frame bitmap, which says which frames of a divided pageblock are free.

#[cfg(not(loom))]
use crate::geometry::FRAME_SIZE;
use crate::geometry::{
    BITMAP_WORD_BITS, BITMAP_WORDS, PAGEBLOCK_FRAMES, SECTION_PAGEBLOCKS, bits_of, mask,
};
use crate::sync::{AtomicU64, Ordering, spin_hint};
use core::ops::Range;

/// The frame bitmap of a pageblock: a set bit is a free frame. One cache line.
#[repr(C)]
pub(crate) struct FrameBitmap {
    words: [AtomicU64; BITMAP_WORDS],
    /// Lets loom check that a writer of a whole bitmap is alone with it.
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
    /// Returns the bitmap's words, the lowest frames first.
    #[inline]
    pub(crate) fn words(&self) -> &[AtomicU64; BITMAP_WORDS] {
        &self.words
    }

    /// Writes the bitmap: every frame is free but those of `taken` and the frame `lent`, which
    /// holds bitmaps (all relative to the pageblock). Owner only.
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

    /// Takes `bits` of one word, if all are free. Acquire pairs with [`give`](Self::give), so that
    /// the new owner of the frames comes after the old one.
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
        // A credit promises a free bit, but others may take the bit that was seen. Each time that
        // this happens, another CPU has made progress, and the promise still holds.
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

    /// Takes the first `left` free frames, for which the caller holds credits, and calls `each`
    /// with each of them. Acquire: see [`take`](Self::take).
    pub(crate) fn take_many(&self, mut left: usize, mut each: impl FnMut(usize)) {
        self.shared();
        // As in `take_any`: bits that others take were not promised to the caller.
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

    /// Sets `bits` of one word, if none of them is set already. Release pairs with
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

    /// Counts the frames that are free by the bits. Exact only while no operation is in flight.
    pub(crate) fn free_frames(&self) -> usize {
        self.words.iter().map(|w| w.load(Ordering::Relaxed).count_ones() as usize).sum()
    }

    #[inline]
    fn shared(&self) {
        #[cfg(loom)]
        self.alone.with(|_| ());
    }
}

/// Returns the lowest `n` set bits, or all of them if there are no more.
fn lowest(word: u64, n: usize) -> u64 {
    let rest = (0..n).fold(word, |rest, _| rest & rest.wrapping_sub(1));
    word & !rest
}

impl BitmapFrame {
    /// Marks every frame of every pageblock as taken. For the code that installs the bitmaps only.
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

    /// Does what the owner of the frame may do with it: loom sees if anybody else accesses it as
    /// well.
    pub(crate) fn overwrite(&self) {
        for bitmap in &self.bitmaps {
            bitmap.alone.with_mut(|_| ());
        }
    }
}
/// Returns a run of frames of a pageblock as words of its bitmap.
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
