//! Takes free frames out of the bitmap of one divided pageblock.

use crate::addr::Pfn;
use crate::frames::request::Unit;
use crate::frames::runs::{aligned_starts, runs_of};
use crate::frames::suitable::{first_suitable_frame, is_on_required_node, suits};
use crate::frames::{AllocRequest, CallContext};
use crate::geometry::{BITMAP_WORD_BITS, BITMAP_WORDS, PAGEBLOCK_FRAMES, mask};
use crate::platform::Platform;
use crate::words::{Block, FrameBitmap, bitmap_words_of};
use core::ops::Range;

impl<P: Platform> CallContext<'_, P> {
    /// Takes a suitable run of free frames for `request` out of `block`, if there is one.
    pub(crate) fn take(&self, block: Block<'_>, request: &AllocRequest) -> Option<Pfn> {
        let any_frame = request.unrestricted_unit() == Some(Unit::Frame);
        if any_frame || suits(self.words(), block, request) {
            self.take_suitable(block, request)
        } else {
            None
        }
    }

    /// Does the same as [`take`](Self::take) for a pageblock that suits the request.
    pub(super) fn take_suitable(&self, block: Block<'_>, request: &AllocRequest) -> Option<Pfn> {
        let any_frame = request.unrestricted_unit() == Some(Unit::Frame);
        if !any_frame {
            // Count a hiding step: if a part of a run is put back below, searches could not find it
            // until then.
            self.start_hiding();
        }
        let bitmap = self.bitmap_of(block)?;
        let first =
            if any_frame { bitmap.take_any()? } else { self.take_run(block, bitmap, request)? };
        if self.is_in_wrong_place(block, request) {
            #[allow(clippy::cast_possible_truncation, reason = "small")]
            self.put_back(block, first..first + request.frames as usize);
            return None;
        }
        block.start().checked_add(first as u64)
    }

    /// Returns whether the request does not accept the zone or the node of `block`. The pageblock
    /// may have changed its zone and node since it became a hint. They do not change while a frame
    /// of the pageblock is allocated.
    fn is_in_wrong_place(&self, block: Block<'_>, request: &AllocRequest) -> bool {
        !request.zones().contains(&block.zone())
            || !is_on_required_node(self.words(), block, request.only_node())
    }

    /// Frees again the frames that the caller has just taken from the bitmap.
    #[cold]
    pub(in crate::frames) fn put_back(&self, block: Block<'_>, frames: Range<usize>) {
        self.start_hiding();
        for (word, bits) in bitmap_words_of(frames) {
            self.put_back_bits(block, word, bits);
        }
    }

    /// Takes the lowest suitable run of free frames, and returns its first frame.
    fn take_run(
        &self,
        block: Block<'_>,
        bitmap: &FrameBitmap,
        request: &AllocRequest,
    ) -> Option<usize> {
        #[allow(clippy::cast_possible_truncation, reason = "small")]
        let frames = request.frames as usize;
        let align = usize::try_from(request.align).unwrap_or(usize::MAX);
        let limit = request.upper_bound.number().saturating_sub(block.start().number());
        let first_allowed = first_suitable_frame(block, request)?;
        let frames_in_word = frames.min(BITMAP_WORD_BITS);
        for i in 0..BITMAP_WORDS {
            let base = i * BITMAP_WORD_BITS;
            loop {
                // In memory that is nearly full, most words have no run.
                let runs = runs_of(bitmap.takeable_in(i), frames_in_word);
                if runs == 0 {
                    break;
                }
                let above = !mask(first_allowed.saturating_sub(base));
                let starts = runs & aligned_starts(base, align) & above;
                let first = base + starts.trailing_zeros() as usize;
                if starts == 0 || (first + frames) as u64 > limit {
                    break;
                }
                let run = first..first + frames;
                // A run of several words can start only at the first frame of this one.
                let in_next_words = base + BITMAP_WORD_BITS..run.end;
                if run.end > PAGEBLOCK_FRAMES || !bitmap.offers(in_next_words) {
                    break;
                }
                match bitmap.take_run(run) {
                    Ok(()) => return Some(first),
                    Err(taken) => self.put_back(block, taken),
                }
            }
        }
        None
    }

    /// Returns whether some frames of a pageblock may be taken.
    pub(crate) fn has_takeable(&self, block: Block<'_>) -> bool {
        self.bitmap_of(block).is_some_and(FrameBitmap::has_takeable)
    }

    /// Returns the number of frames of a pageblock that may be taken. This is a snapshot.
    pub(crate) fn count_takeable(&self, block: Block<'_>) -> u64 {
        self.with_bitmap(block, |bitmap| bitmap.map_or(0, FrameBitmap::count_takeable))
    }
}
