//! Checks that frames contain what the engine says of them when it allocates them: the value with
//! which the kernel fills memory that it frees, or zeroes that the host has written.

use super::fatal::give_up;
use super::memory::{FRAME_WORDS, FRAMES};
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};
use hotmem::{AllocError, AllocRequest, Bytes, Contents, PfnRange};
use hotmem_guest::event::Event;
use hotmem_guest::frame_words::{self, each_frame};

/// The numbers of frames since the last event that were known to be zero, and that were not. They
/// are statistics that order nothing.
static ZERO_FRAMES: AtomicU64 = AtomicU64::new(0);
static OTHER_FRAMES: AtomicU64 = AtomicU64::new(0);

/// Frames that were just allocated, and what the engine says of them.
#[must_use = "the frames stay allocated, and are not checked"]
pub(crate) struct NewFrames {
    range: PfnRange,
    contents: Contents,
}

/// Allocates frames. The caller checks them.
pub(crate) fn alloc_unchecked(request: AllocRequest) -> Result<NewFrames, AllocError> {
    let (allocation, contents) = FRAMES.alloc_with_contents(request)?;
    Ok(NewFrames { range: allocation.into_raw(), contents })
}

impl NewFrames {
    /// Returns the frames.
    pub(crate) fn range(&self) -> PfnRange {
        self.range
    }

    /// Checks that each frame contains what the engine says, and ends the run if one does not.
    /// Returns the frames.
    pub(crate) fn check(self) -> PfnRange {
        let NewFrames { range, contents } = self;
        if let Contents::Filled(word) = contents {
            check(range, u64::from(word) << 32 | u64::from(word));
        }
        if FRAMES.keeps_zero_marks() {
            let is_zero = contents == Contents::Filled(0);
            let count = if is_zero { &ZERO_FRAMES } else { &OTHER_FRAMES };
            count.fetch_add(range.frames(), Relaxed);
        }
        range
    }
}

/// Returns an event with the amounts of memory that were checked since the last event, if the
/// kernel keeps zero marks and has allocated any.
pub(crate) fn event() -> Option<Event<'static>> {
    let [zero, other] = [&ZERO_FRAMES, &OTHER_FRAMES]
        .map(|count| Bytes(count.swap(0, Relaxed) * hotmem::geometry::FRAME_SIZE));
    (zero.0 + other.0 > 0).then_some(Event::KnownZero { zero, other })
}

fn check(frames: PfnRange, word: u64) {
    for frame in each_frame(frames) {
        for index in 0..frame_words::FRAME_WORDS {
            // SAFETY: the caller owns the frame, so it is mapped and has no other user.
            let found = unsafe { FRAME_WORDS.read(frame, index) };
            if found != word {
                let frame = frame.number();
                give_up(format_args!(
                    "frame {frame:#x} was free and holds {found:#x} at {index}, not {word:#x}"
                ));
            }
        }
    }
}
