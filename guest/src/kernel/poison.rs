//! Checks that free memory holds the value with which the kernel fills memory that it frees.

use super::fatal::give_up;
use super::memory::{FRAME_WORDS, FRAMES};
use hotmem::{Contents, PfnRange};
use hotmem_guest::frame_words::{self, each_frame};

/// Checks that `frames`, which were just allocated, contain the value of free memory. Does nothing
/// if the kernel does not fill free memory.
pub(crate) fn check(frames: PfnRange) {
    let Contents::Filled(word) = FRAMES.contents() else { return };
    let word = u64::from(word) << 32 | u64::from(word);
    for frame in each_frame(frames) {
        for index in 0..frame_words::FRAME_WORDS {
            // SAFETY: the caller owns the frame, so it is mapped and has no other user.
            let found = unsafe { FRAME_WORDS.read(frame, index) };
            if found != word {
                let frame = frame.number();
                give_up(format_args!("frame {frame:#x} was free and holds {found:#x} at {index}"));
            }
        }
    }
}
