//! Checks the contents of free memory, if the kernel fills memory that it frees.

use super::fatal::give_up;
use super::memory::{FRAME_WORDS, FRAMES};
use hotmem::{Contents, Pfn, PfnRange};
use hotmem_guest::frame_words;

/// Checks that frames that were just allocated are filled with the value of free memory.
pub(crate) fn check(frames: PfnRange) {
    let Contents::Filled(word) = FRAMES.contents() else { return };
    let word = u64::from(word) << 32 | u64::from(word);
    for (frame, index) in words(frames) {
        // SAFETY: the caller owns the frame, so it is mapped.
        let found = unsafe { FRAME_WORDS.read(frame, index) };
        if found != word {
            let frame = frame.number();
            give_up(format_args!("frame {frame:#x} was free and holds {found:#x} at {index}"));
        }
    }
}

fn words(frames: PfnRange) -> impl Iterator<Item = (Pfn, u64)> {
    let frames = (frames.start().number()..frames.end().number()).filter_map(Pfn::new);
    frames.flat_map(|frame| (0..frame_words::FRAME_WORDS).map(move |index| (frame, index)))
}
