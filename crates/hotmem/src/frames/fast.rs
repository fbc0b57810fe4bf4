//! Allocates one frame from the CPU's own pageblock: the fast path.

use super::Frames;
use crate::addr::Pfn;
use crate::geometry::BITMAP_WORD_BITS;
use crate::known::Known;
use crate::platform::Platform;
use crate::sync::Ordering;
use crate::words::{FrameBitmap, Grain, Section, Zone};

/// What the fast path has found: a frame, or none. In one register, so that its slow parts are tail
/// calls, for which it saves no registers.
#[derive(Clone, Copy)]
struct Near(u64);

impl Near {
    const NONE: Near = Near(u64::MAX);

    /// Returns the frame, if there is one.
    #[inline(always)]
    fn get(self) -> Option<Pfn> {
        Pfn::new(self.0)
    }
}

impl<P: Platform> Frames<P> {
    /// Allocates one frame from this CPU's pageblock by one read-modify-write: the fast path.
    #[inline(always)]
    pub(super) fn alloc_frame(&self, zone: Zone) -> Option<Pfn> {
        match zone {
            Zone::Kernel => self.alloc_frame_in::<{ Zone::Kernel as u8 }>().get(),
            Zone::Movable => self.alloc_frame_in::<{ Zone::Movable as u8 }>().get(),
        }
    }

    #[inline(never)]
    fn alloc_frame_in<const ZONE: u8>(&self) -> Near {
        let zone = Zone::ALL[usize::from(ZONE)];
        let cpu = self.cpu();
        let hint = cpu.block(zone, Grain::Frame).load(Ordering::Acquire);
        let Some((section, bit, first)) = self.words.hinted_words(hint) else { return Near::NONE };
        let Some(bitmap) = section.bitmaps.lasting(bit) else { return Near::NONE };
        match bitmap.take_in(cpu.cursor(zone)) {
            Some(taken) => self.check_zone(section, bit, Near(first + taken as u64), zone),
            None => self.alloc_frame_elsewhere(zone),
        }
    }

    /// Allocates one frame of another word than the cursor's, and moves the cursor there.
    #[inline(never)]
    fn alloc_frame_elsewhere(&self, zone: Zone) -> Near {
        let cpu = self.cpu();
        let hint = cpu.block(zone, Grain::Frame).load(Ordering::Acquire);
        let Some((section, bit, first)) = self.words.hinted_words(hint) else { return Near::NONE };
        let bitmap = section.bitmaps.lasting(bit);
        let Some(taken) = bitmap.and_then(FrameBitmap::take_any) else { return Near::NONE };
        cpu.set_cursor(zone, taken / BITMAP_WORD_BITS);
        self.check_zone(section, bit, Near(first + taken as u64), zone)
    }

    /// Returns `frame`, which the caller has just taken by a hint, unless the pageblock has changed
    /// its zone since the hint was set.
    #[inline]
    fn check_zone(&self, section: &Section, bit: usize, frame: Near, zone: Zone) -> Near {
        if section.zone_of(bit) == zone { frame } else { self.refuse_frame(frame) }
    }

    /// Frees a frame again that the caller has just taken by a hint.
    #[cold]
    #[inline(never)]
    fn refuse_frame(&self, frame: Near) -> Near {
        if let Some(frame) = frame.get().known()
            && let Some(block) = self.words.block_of(frame).known()
        {
            let at = block.offset_of(frame);
            self.put_back(&block, at..at + 1, &mut self.no_moves_yet());
        }
        Near::NONE
    }
}
