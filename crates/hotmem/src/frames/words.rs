//! A range of frames as section words.

use super::Frames;
use crate::addr::PfnRange;
use crate::geometry::{PAGEBLOCK_FRAMES, SECTION_FRAMES, mask};
use crate::known::Known;
use crate::platform::Platform;
use crate::section::Section;

impl<P: Platform> Frames<P> {
    /// The parts of `range` by section, as words. What is not announced is left out.
    pub(crate) fn words_of(
        &self,
        range: PfnRange,
    ) -> impl DoubleEndedIterator<Item = (usize, usize, u64)> + use<'_, P> {
        // Nearly always within one region, which then need not be looked for again and again.
        let within = self.find(range.start()).map(|(slot, _)| (slot, &self.slots()[slot]));
        let within = within.filter(|(_, region)| region.range().is_some_and(|r| r.covers(range)));
        range.sections().filter_map(move |piece| match within {
            Some((slot, region)) => {
                let (index, blocks) = word_at(region.offset_of(piece.start())?, piece);
                Some((slot, index, blocks))
            }
            None => self.word_of(piece),
        })
    }

    /// The part of a section as a word: region slot, section, pageblocks.
    #[inline]
    pub(crate) fn word_of(&self, piece: PfnRange) -> Option<(usize, usize, u64)> {
        let (slot, offset) = self.find(piece.start())?;
        if !self.slots().get(slot)?.range()?.covers(piece) {
            return None;
        }
        let (index, blocks) = word_at(offset, piece);
        Some((slot, index, blocks))
    }

    pub(crate) fn section(&self, slot: usize, index: usize) -> Option<&Section> {
        self.slots().get(slot)?.section(index)
    }

    /// The frames of the lowest pageblock in `blocks`.
    pub(crate) fn first_block(&self, slot: usize, index: usize, blocks: u64) -> PfnRange {
        self.block(slot, index, blocks.trailing_zeros() as usize)
            .and_then(|block| PfnRange::with_len(block.start(), PAGEBLOCK_FRAMES as u64))
            .known()
            .unwrap_or(PfnRange::EMPTY)
    }
}

/// The part of a section that lies `offset` frames above its region's base: section, pageblocks.
#[inline]
fn word_at(offset: usize, piece: PfnRange) -> (usize, u64) {
    let first = offset % SECTION_FRAMES;
    #[allow(clippy::cast_possible_truncation, reason = "at most a section")]
    let end = first + piece.frames() as usize;
    let blocks = mask(end.div_ceil(PAGEBLOCK_FRAMES)) & !mask(first / PAGEBLOCK_FRAMES);
    (offset / SECTION_FRAMES, blocks)
}
