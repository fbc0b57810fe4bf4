//! What free memory holds: nothing in particular, or a word, in a kernel that fills what it frees.

use super::give_up;
use super::memory::FRAME_WORDS;
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};
use hotmem::{Pfn, PfnRange};
use hotmem_guest::frame_words;

/// Not the same four bytes twice.
const NOTHING: u64 = 1;
/// The same four bytes twice, or [`NOTHING`]. Written before other CPUs are started.
static WORD: AtomicU64 = AtomicU64::new(NOTHING);

/// Free memory holds these four bytes from now on.
pub(crate) fn begin(word: u32) {
    WORD.store(u64::from(word) << 32 | u64::from(word), Relaxed);
}

/// Fills frames that are the caller's, and about to be free.
pub(crate) fn fill(frames: PfnRange) {
    let Some(word) = word() else { return };
    for (frame, index) in words(frames) {
        // SAFETY: the frame is the caller's, so it is mapped.
        unsafe { FRAME_WORDS.write(frame, index, word) }
    }
}

/// Makes sure that frames that were free a moment ago, and are the caller's now, were filled.
pub(crate) fn check(frames: PfnRange) {
    let Some(word) = word() else { return };
    for (frame, index) in words(frames) {
        // SAFETY: the frame is the caller's, so it is mapped.
        let found = unsafe { FRAME_WORDS.read(frame, index) };
        if found != word {
            let frame = frame.number();
            give_up(format_args!("frame {frame:#x} was free and holds {found:#x} at {index}"));
        }
    }
}

fn word() -> Option<u64> {
    Some(WORD.load(Relaxed)).filter(|&word| word != NOTHING)
}

fn words(frames: PfnRange) -> impl Iterator<Item = (Pfn, u64)> {
    let frames = (frames.start().number()..frames.end().number()).filter_map(Pfn::new);
    frames.flat_map(|frame| (0..frame_words::FRAME_WORDS).map(move |index| (frame, index)))
}
