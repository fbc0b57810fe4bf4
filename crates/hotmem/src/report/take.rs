//! Claims what is worth reporting, and gives it back.

use super::round::{Cursor, Round};
use super::{Batch, Reporter};
use crate::addr::PfnRange;
use crate::geometry::{PAGEBLOCK_FRAMES, SECTION_PAGEBLOCKS, bits_of, mask};
use crate::platform::Platform;
use crate::region::{Class, NodeId, Zone};
use crate::section::Section;
use crate::sync::{Ordering, mutant};

/// Claims of one section that may fail because others are faster.
const TRIES: usize = 4;

impl<P: Platform> Reporter<'_, P> {
    /// The next section that may have something, in the order of a round.
    pub(super) fn next_section(&self, cursor: &mut Cursor) -> Option<(usize, usize)> {
        loop {
            let region = self.frames.regions().get(cursor.slot)?;
            let found = cursor.done_from.checked_sub(1).and_then(|from| {
                let trees = Zone::ALL.iter().map(|&zone| region.tree(Class::unreported(zone)));
                trees.filter_map(|tree| tree.prev(from)).max()
            });
            match found {
                Some(index) => {
                    cursor.done_from = index;
                    return Some((cursor.slot, index));
                }
                None => *cursor = Cursor { slot: cursor.slot + 1, ..Cursor::default() },
            }
        }
    }

    /// Pageblocks of a section that are free, not reported and not pinned.
    fn candidates(&self, slot: usize, index: usize) -> u64 {
        let region = &self.frames.slots()[slot];
        let Some(section) = region.section(index) else { return 0 };
        let mut all = 0;
        for class in Zone::ALL.map(Class::unreported) {
            let here = section.available(class);
            if here == 0 {
                region.tree(class).clear_leaf(index, || section.available(class) == 0);
            }
            all |= here;
        }
        all & !self.frames.pinned_in(region, index)
    }

    /// Of the candidates those that have been free for long enough. The others are seen now.
    pub(super) fn ripe_in(&self, slot: usize, index: usize, round: &mut Round) -> u64 {
        let candidates = self.candidates(slot, index);
        let mut ripe = 0;
        for bit in bits_of(candidates) {
            let seen = self.frames.block(slot, index, bit).is_some_and(|b| b.counter.see());
            if seen || self.settings.dwell.is_zero() {
                ripe |= 1 << bit;
            } else {
                round.too_young = true;
            }
        }
        ripe
    }

    /// All candidates, as far as the threshold.
    pub(super) fn waits_in_all(&self) -> u64 {
        let enough = self.settings.threshold_blocks();
        let mut cursor = Cursor::default();
        let mut blocks = 0;
        while blocks < enough
            && let Some((slot, index)) = self.next_section(&mut cursor)
        {
            blocks += u64::from(self.candidates(slot, index).count_ones());
        }
        blocks
    }

    /// Whether there is something that no round has seen, and enough of it all for a round.
    pub(super) fn is_new_work_there(&self) -> bool {
        let mut cursor = Cursor::default();
        let mut is_new = false;
        while let Some((slot, index)) = self.next_section(&mut cursor)
            && !is_new
        {
            let mut blocks = bits_of(self.candidates(slot, index));
            is_new = blocks.any(|bit| {
                self.frames.block(slot, index, bit).is_some_and(|b| !b.counter.was_seen())
            });
        }
        is_new && self.waits_in_all() >= self.settings.threshold_blocks()
    }

    /// Puts as much of `ripe` into the batch as there is room for, highest first; what has none is
    /// left in the round.
    pub(super) fn take(
        &self,
        (slot, index, mut ripe): (usize, usize, u64),
        batch: &mut Batch,
        room: &mut u64,
        round: &mut Round,
    ) {
        let region = &self.frames.slots()[slot];
        let Some(section) = region.section(index) else { return };
        // What is left over from the last batch may have been pinned or reported since.
        ripe &= !self.frames.pinned_in(region, index) & !section.reported.load(Ordering::Relaxed);
        let mut tries = TRIES;
        while ripe != 0 {
            if *room == 0 || batch.ranges().len() == self.settings.most_ranges() {
                round.rest = Some((slot, index, ripe));
                return;
            }
            let most = self.settings.longest_blocks().min(*room);
            let (first, len) = highest_run(ripe, most);
            // The rest of a node that has no more to spare is seen by now, and stays.
            let len =
                if self.settings.kept_blocks() == 0 { len } else { self.spare(region.node(), len) };
            if len == 0 {
                return;
            }
            let run = mask(usize::try_from(len).unwrap_or(0)) << first;
            if section.claim_all(run) {
                self.isolate(slot, index, section, run);
                let pinned = run & self.frames.pinned_after_mark(region, index);
                if pinned != 0 {
                    self.publish(slot, index, run, false);
                    ripe &= !pinned;
                    continue;
                }
                *room -= len;
                ripe &= !run;
                let start = region.pfn_at((index * SECTION_PAGEBLOCKS + first) * PAGEBLOCK_FRAMES);
                let range = PfnRange::with_len(start, len * PAGEBLOCK_FRAMES as u64);
                batch.push(range.unwrap_or(PfnRange::EMPTY));
            } else {
                // Somebody has taken a part of it, and may give it back as it was.
                round.too_young |= !mutant!("what others took is not looked for again");
                tries -= 1;
                if tries == 0 {
                    return;
                }
                ripe &= section.free.load(Ordering::Relaxed);
            }
        }
    }

    /// Claimed pageblocks go out.
    fn isolate(&self, slot: usize, index: usize, section: &Section, run: u64) {
        for bit in bits_of(run) {
            if let Some(block) = self.frames.block(slot, index, bit) {
                block.counter.send_out();
            }
        }
        section.isolated.fetch_or(run, Ordering::AcqRel);
    }

    /// How many of `wanted` pageblocks may go from a node, if some are to stay as they are.
    fn spare(&self, node: NodeId, wanted: u64) -> u64 {
        let kept = self.settings.kept_blocks();
        let mut here = 0;
        for region in self.frames.regions().iter().filter(|region| region.node() == node) {
            for class in Zone::ALL.map(Class::unreported) {
                for index in region.tree(class).all_from(0) {
                    if here >= kept + wanted {
                        return wanted;
                    }
                    let blocks = region.section(index).map_or(0, |s| s.available(class));
                    here += u64::from(blocks.count_ones());
                }
            }
        }
        here.saturating_sub(kept).min(wanted)
    }

    /// Publishes a batch again; says how many pageblocks that was.
    pub(super) fn come_back(&mut self, batch: &Batch, reported: bool) -> u64 {
        if batch.generation != self.frames.bell().generation() {
            return 0;
        }
        self.out = self.out.saturating_sub(batch.blocks());
        let words = batch.ranges().iter().flat_map(|&range| self.frames.words_of(range));
        words.map(|(slot, index, held)| self.publish(slot, index, held, reported)).sum()
    }

    /// Publishes everything that is out.
    pub(super) fn reclaim(&self) -> u64 {
        let mut blocks = 0;
        for (slot, region) in self.frames.regions().iter().enumerate() {
            for index in 0..region.section_count() {
                let held = region.section(index).map_or(0, |s| s.isolated.load(Ordering::Acquire));
                if held != 0 {
                    blocks += self.publish(slot, index, held, false);
                }
            }
        }
        blocks
    }

    /// Publishes those of `held` that are out.
    fn publish(&self, slot: usize, index: usize, held: u64, reported: bool) -> u64 {
        let Some(section) = self.frames.section(slot, index) else { return 0 };
        let is_back = |&bit: &usize| {
            self.frames.block(slot, index, bit).is_some_and(|b| b.counter.take_back())
        };
        let back = bits_of(held).filter(is_back).fold(0, |word, bit| word | 1 << bit);
        if back == 0 {
            return 0;
        }
        let mut moves = self.frames.no_moves_yet();
        moves.start();
        section.isolated.fetch_and(!back, Ordering::AcqRel);
        let whole = self.frames.divide_around_poison(slot, index, back, &mut moves);
        if reported {
            // Before the publish, which makes it visible.
            section.reported.fetch_or(whole, Ordering::Relaxed);
            self.frames.bell().note_withdrawn(back & !whole);
        }
        if whole != 0 {
            self.frames.show_free(slot, index, whole, &mut moves);
        }
        u64::from(back.count_ones())
    }

    /// The tree leads to everything that waits: nobody has told it while there was no reporter.
    pub(super) fn find_all(&self) {
        for region in self.frames.regions() {
            for index in 0..region.section_count() {
                let Some(section) = region.section(index) else { break };
                for class in Zone::ALL.map(Class::unreported) {
                    // `SeqCst`: see `frames/bell.rs`.
                    if section.free.load(Ordering::SeqCst) != 0 && section.available(class) != 0 {
                        region.tree(class).set(index);
                    }
                }
            }
        }
    }
}

/// The highest run of set bits, or the upper part of it: its first bit and its length, at most
/// `most`.
fn highest_run(word: u64, most: u64) -> (usize, u64) {
    let above = word.leading_zeros();
    let len = u64::from((word << above).leading_ones()).min(most);
    let end = 64 - above as usize;
    (end - usize::try_from(len).unwrap_or(end), len)
}
