//! Allocates one frame at the CPU's cursor, or from its hint: the fast path.

use super::Frames;
use super::found_frame::FoundFrame;
use crate::addr::Pfn;
use crate::known::Known;
use crate::platform::Platform;
use crate::sync::Ordering;
use crate::words::{Grain, Zone};

impl<P: Platform> Frames<P> {
    /// Allocates one frame from the word at this CPU's cursor, or else from its hint, by one
    /// read-modify-write: the fast path.
    #[inline(always)]
    pub(super) fn alloc_frame(&self, zone: Zone) -> Option<Pfn> {
        match zone {
            Zone::Kernel => self.alloc_frame_in::<{ Zone::Kernel as u8 }>().get(),
            Zone::Movable => self.alloc_frame_in::<{ Zone::Movable as u8 }>().get(),
        }
    }

    #[inline(never)]
    fn alloc_frame_in<const ZONE: u8>(&self) -> FoundFrame {
        let zone = Zone::ALL[usize::from(ZONE)];
        match self.cpu_inlined().cursor(zone).take(zone) {
            Some(frame) => FoundFrame::number(frame),
            None => self.alloc_frame_elsewhere(zone),
        }
    }

    /// Allocates one frame from another word than the cursor's, and moves the cursor there if that
    /// word has other free frames.
    #[inline(never)]
    fn alloc_frame_elsewhere(&self, zone: Zone) -> FoundFrame {
        let cpu = self.cpu();
        let hint = cpu.block(zone, Grain::Frame).load(Ordering::Acquire);
        let Some((section, bit)) = self.words.hinted_words(hint) else { return FoundFrame::NONE };
        let bitmap = section.bitmaps.lasting(bit);
        let taken = bitmap.and_then(|bitmap| bitmap.take_one_of(zone));
        let Some((word, frame, is_last)) = taken else { return FoundFrame::NONE };
        if !is_last && let Some(word) = section.bitmaps.lasting_word(bit, word).known() {
            // This call still owns the frame.
            self.move_cursor(zone, word, &mut self.new_moves());
        }
        FoundFrame::number(frame)
    }
}
