//! Allocates one frame at the CPU's cursor, or from its hint: the fast path.

use super::frame_or_none::FrameOrNone;
use crate::addr::Pfn;
use crate::frames::Frames;
use crate::invariant::OrRecordViolation;
use crate::platform::Platform;
use crate::sync::Ordering;
use crate::words::{Grain, Zone};

impl<P: Platform> Frames<P> {
    /// Allocates one frame from the word at this CPU's cursor, or else from its hint, by one
    /// read-modify-write: the fast path.
    #[inline(always)]
    pub(in crate::frames) fn alloc_frame(&self, zone: Zone) -> Option<Pfn> {
        match zone {
            Zone::Kernel => self.alloc_frame_in::<{ Zone::Kernel as u8 }>().get(),
            Zone::Movable => self.alloc_frame_in::<{ Zone::Movable as u8 }>().get(),
        }
    }

    #[inline(never)]
    fn alloc_frame_in<const ZONE: u8>(&self) -> FrameOrNone {
        let zone = Zone::ALL[usize::from(ZONE)];
        match self.cpu_inlined().take_at_cursor(zone) {
            Some(frame) => FrameOrNone::number(frame),
            None => self.alloc_frame_elsewhere(zone),
        }
    }

    /// Allocates one frame after an attempt at the cursor has failed. Makes a second attempt there,
    /// because the first may have been based on a wrong guess of the word's value. If it fails,
    /// allocates from another word, and moves the cursor there if that word has other free frames.
    #[inline(never)]
    fn alloc_frame_elsewhere(&self, zone: Zone) -> FrameOrNone {
        let cpu = self.cpu();
        if let Some(frame) = cpu.take_at_cursor(zone) {
            return FrameOrNone::number(frame);
        }
        let hint = cpu.block(zone, Grain::Frame).load(Ordering::Acquire);
        let Some((section, bit)) = self.words.hinted_words(hint) else { return FrameOrNone::NONE };
        let bitmap = section.bitmaps.lasting(bit);
        let taken_frame = bitmap.and_then(|bitmap| bitmap.take_frame_of(zone, &cpu.last_change));
        let Some((word, frame, is_last)) = taken_frame else { return FrameOrNone::NONE };
        if !is_last
            && let Some(word) = section.bitmaps.lasting_word(bit, word).or_record_violation()
        {
            // This call still owns the frame.
            self.move_cursor_within(hint, zone, word);
        }
        FrameOrNone::number(frame)
    }
}
