//! Records the contents of free memory, and fills memory that becomes free with these contents.
//!
//! The kernel fills the frames that it frees. The engine fills all other memory that becomes free:
//! memory that comes online, and frames that the engine or the kernel's mapping had allocated for
//! metadata.

use super::{CallContext, Frames};
use crate::addr::PfnRange;
use crate::platform::Platform;
use crate::range_error::RangeError;
use crate::sync::Ordering;
use crate::words::SectionPart;
use core::fmt;

/// The contents of free memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Contents {
    /// Free memory has any contents, and code that allocates must not rely on them.
    #[default]
    Undefined,
    /// Free memory is filled with this word, repeated: a poison pattern, or 0.
    Filled(u32),
}

/// The flag that distinguishes an encoded [`Contents::Filled`].
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
    /// Returns the contents of free memory.
    #[must_use]
    pub fn contents(&self) -> Contents {
        // Relaxed: the value is set only while no other code allocates or frees.
        Contents::decode(self.contents.load(Ordering::Relaxed))
    }

    /// Sets the contents of free memory: see [`set_contents`](Self::set_contents).
    pub(crate) fn store_contents(&self, contents: Contents) {
        self.contents.store(contents.encode(), Ordering::Relaxed);
    }
}

impl<P: Platform> CallContext<'_, P> {
    /// Fills `range` with the contents of free memory, then frees it as
    /// [`free_range`](Frames::free_range) does.
    ///
    /// # Errors
    /// Those of [`free_range`](Frames::free_range). Nothing is written if a frame is not allocated.
    pub(super) fn fill_and_free(&self, range: PfnRange) -> Result<(), RangeError> {
        if self.frames.contents() != Contents::Undefined {
            self.check_allocated(range)?;
            self.fill_as_free(range);
        }
        self.frames.free_range(range)
    }

    /// Fills those frames of `range` that are not poisoned with the contents of free memory. The
    /// caller owns `range`, and it is mapped.
    pub(crate) fn fill_as_free(&self, range: PfnRange) {
        let Contents::Filled(word) = self.frames.contents() else { return };
        let has_poison = self.poisoned_in(range).next().is_some();
        for frame in range.chunks(1) {
            if !has_poison || self.poisoned_in(frame).next().is_none() {
                self.fill_frame(frame, word);
            }
        }
    }

    /// Fills pageblocks of a section as [`fill_as_free`](Self::fill_as_free) does. The caller owns
    /// them, and they are mapped.
    ///
    /// Cost: one load if the contents of free memory are undefined.
    pub(crate) fn fill_blocks(&self, SectionPart { section, blocks }: SectionPart<'_>) {
        if self.frames.contents() != Contents::Undefined {
            section.blocks(blocks).for_each(|block| self.fill_as_free(block.range()));
        }
    }

    #[cfg(not(loom))]
    fn fill_frame(&self, frame: PfnRange, word: u32) {
        const WORDS: usize = (1 << crate::geometry::FRAME_SHIFT) / size_of::<u32>();
        let words: *mut u32 = self.frames.direct_map().pointer(frame.start()).cast();
        for index in 0..WORDS {
            // SAFETY: `frame` is mapped, and the caller owns it.
            unsafe { words.add(index).write(word) }
        }
    }

    /// Does nothing under loom: its frames have no contents.
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
