//! What free memory holds: anything, or a word that the kernel promises.
//!
//! The kernel fills what it frees. The engine fills what comes to be free without the kernel's
//! doing: what comes online, and what the engine or its hooks had for themselves.

use super::{Frames, FreeError};
use crate::addr::PfnRange;
use crate::platform::Platform;
use crate::sync::Ordering;
use crate::words::Part;
use core::fmt;

/// What free memory holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Contents {
    /// Anything: whoever allocates it does not care.
    #[default]
    Undefined,
    /// This word, again and again: a poison, or zero.
    Filled(u32),
}

/// Set in a word that free memory holds.
const FILLED: u64 = 1 << 32;

impl Contents {
    fn encode(self) -> u64 {
        match self {
            Contents::Undefined => 0,
            Contents::Filled(word) => FILLED | u64::from(word),
        }
    }

    #[allow(clippy::cast_possible_truncation, reason = "the word is the lower half")]
    fn decode(encoded: u64) -> Contents {
        if encoded & FILLED == 0 { Contents::Undefined } else { Contents::Filled(encoded as u32) }
    }
}

impl<P> Frames<P> {
    /// What free memory holds.
    #[must_use]
    pub fn contents(&self) -> Contents {
        // Relaxed: set while nobody else allocates or frees.
        Contents::decode(self.contents.load(Ordering::Relaxed))
    }

    /// From now on free memory holds this: see [`set_contents`](Self::set_contents).
    pub(crate) fn store_contents(&self, contents: Contents) {
        self.contents.store(contents.encode(), Ordering::Relaxed);
    }
}

impl<P: Platform> Frames<P> {
    /// As [`free_range`](Self::free_range), after filling the frames with what free memory holds.
    ///
    /// # Errors
    /// As for [`free_range`](Self::free_range); nothing is written if any of it is not allocated.
    pub(crate) fn free_filled(&self, range: PfnRange) -> Result<(), FreeError> {
        if self.contents() != Contents::Undefined {
            self.check_allocated(range)?;
            self.fill(range);
        }
        self.free_range(range)
    }

    /// Fills frames that are the caller's and mapped, but for those that are poisoned.
    pub(crate) fn fill(&self, range: PfnRange) {
        let Contents::Filled(word) = self.contents() else { return };
        let has_poison = self.poisoned_in(range).next().is_some();
        for frame in range.chunks(1) {
            if !has_poison || self.poisoned_in(frame).next().is_none() {
                self.fill_frame(frame, word);
            }
        }
    }

    /// Fills pageblocks of a section that are the caller's and mapped, as [`fill`](Self::fill).
    ///
    /// Cost: a load if free memory holds nothing in particular.
    pub(crate) fn fill_blocks(&self, Part { section, blocks }: Part<'_>) {
        if self.contents() != Contents::Undefined {
            section.blocks(blocks).for_each(|block| self.fill(block.range()));
        }
    }

    #[cfg(not(loom))]
    fn fill_frame(&self, frame: PfnRange, word: u32) {
        const WORDS: usize = (1 << crate::geometry::FRAME_SHIFT) / size_of::<u32>();
        let words: *mut u32 = self.direct_map().pointer(frame.start()).cast();
        for at in 0..WORDS {
            // SAFETY: the frame is mapped and the caller's.
            unsafe { words.add(at).write(word) }
        }
    }

    /// A frame of a model has no words.
    #[cfg(loom)]
    fn fill_frame(&self, _: PfnRange, _: u32) {}
}

impl fmt::Display for Contents {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Contents::Undefined => f.write_str("anything"),
            Contents::Filled(word) => write!(f, "{word:#010x}"),
        }
    }
}
