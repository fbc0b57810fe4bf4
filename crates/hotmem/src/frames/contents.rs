//! Records what free memory holds, and fills memory that the engine frees accordingly.
//!
//! The kernel fills the frames that it frees. The engine fills the frames that become free in
//! another way: memory that comes online, and frames that the engine or its hooks had allocated for
//! themselves.

use super::Frames;
use crate::addr::PfnRange;
use crate::platform::Platform;
use crate::range_error::RangeError;
use crate::sync::Ordering;
use crate::words::Part;
use core::fmt;

/// The contents of free memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Contents {
    /// Any contents: the allocating code must not rely on them.
    #[default]
    Undefined,
    /// This word, repeated: a poison pattern, or zero.
    Filled(u32),
}

/// The flag of an encoded [`Contents::Filled`].
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
    /// Returns what free memory holds.
    #[must_use]
    pub fn contents(&self) -> Contents {
        // Relaxed: the value is set only while no other code allocates or frees.
        Contents::decode(self.contents.load(Ordering::Relaxed))
    }

    /// Sets what free memory holds from now on: see [`set_contents`](Self::set_contents).
    pub(crate) fn store_contents(&self, contents: Contents) {
        self.contents.store(contents.encode(), Ordering::Relaxed);
    }
}

impl<P: Platform> Frames<P> {
    /// Fills the frames with what free memory holds, then frees them as
    /// [`free_range`](Self::free_range) does.
    ///
    /// # Errors
    /// As for [`free_range`](Self::free_range); nothing is written if a frame is not allocated.
    pub(crate) fn free_filled(&self, range: PfnRange) -> Result<(), RangeError> {
        if self.contents() != Contents::Undefined {
            self.check_allocated(range)?;
            self.fill_as_free(range);
        }
        self.free_range(range)
    }

    /// Fills the frames of `range` that are not poisoned. The caller owns them, and they are
    /// mapped.
    pub(crate) fn fill_as_free(&self, range: PfnRange) {
        let Contents::Filled(word) = self.contents() else { return };
        let has_poison = self.poisoned_in(range).next().is_some();
        for frame in range.chunks(1) {
            if !has_poison || self.poisoned_in(frame).next().is_none() {
                self.fill_frame(frame, word);
            }
        }
    }

    /// Fills pageblocks of a section as [`fill_as_free`](Self::fill_as_free) does. The caller owns them, and they
    /// are mapped.
    ///
    /// Cost: one load if the contents of free memory are undefined.
    pub(crate) fn fill_blocks(&self, Part { section, blocks }: Part<'_>) {
        if self.contents() != Contents::Undefined {
            section.blocks(blocks).for_each(|block| self.fill_as_free(block.range()));
        }
    }

    #[cfg(not(loom))]
    fn fill_frame(&self, frame: PfnRange, word: u32) {
        const WORDS: usize = (1 << crate::geometry::FRAME_SHIFT) / size_of::<u32>();
        let words: *mut u32 = self.direct_map().pointer(frame.start()).cast();
        for at in 0..WORDS {
            // SAFETY: the frame is mapped, and the caller owns it.
            unsafe { words.add(at).write(word) }
        }
    }

    /// Does nothing: under loom, a frame has no contents.
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
