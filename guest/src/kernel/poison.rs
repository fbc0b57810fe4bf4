//! What free memory holds: nothing in particular, or a word, in a kernel that fills what it frees.

use super::fatal::give_up;
use super::memory::{FRAME_WORDS, FRAMES};
use hotmem::{Contents, Pfn, PfnRange};
use hotmem_guest::frame_words;

/// Makes sure that frames that were free a moment ago, and are the caller's now, were filled.
pub(crate) fn check(frames: PfnRange) {
    let Contents::Filled(word) = FRAMES.contents() else { return };
    let word = u64::from(word) << 32 | u64::from(word);
    for (frame, index) in words(frames) {
        // SAFETY: the frame is the caller's, so it is mapped.
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
