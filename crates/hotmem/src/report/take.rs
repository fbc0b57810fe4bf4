//! Claims what is worth reporting, and gives it back.

use super::round::{Cursor, Looks, Round, Spare, Spent, Survey};
use super::{Batch, Reporter};
use crate::addr::PfnRange;
use crate::geometry::{PAGEBLOCK_FRAMES, SECTION_PAGEBLOCKS, bits_of, mask};
use crate::known::Known;
use crate::platform::Platform;
use crate::region::{Class, NodeId, Zone};
use crate::section::Section;
use crate::sync::{Ordering, mutant};

/// Claims of one section that may fail because others are faster.
const TRIES: usize = 4;

/// Pageblocks that may still go into a batch.
pub(super) struct Room {
    /// Of anything.
    left: u64,
    /// Zone of a node that was counted last, and how much of it is free or was when this step began.
    free: Option<(NodeId, Zone, u64)>,
}

impl Room {
    pub(super) fn of(left: u64) -> Room {
        Room { left, free: None }
    }
}

impl<P: Platform> Reporter<'_, P> {
    /// The next section that may have something, in the order of a round.
    pub(super) fn next_section(
        &self,
        cursor: &mut Cursor,
        looks: &mut Looks,
    ) -> Result<Option<(usize, usize)>, Spent> {
        loop {
            let Some(region) = self.frames.regions().get(cursor.slot) else { return Ok(None) };
            let found = cursor.done_from.checked_sub(1).and_then(|from| {
                let trees = Zone::ALL.iter().map(|&zone| region.tree(Class::unreported(zone)));
                trees.filter_map(|tree| tree.prev(from)).max()
            });
            match found {
                Some(index) => {
                    looks.spend()?;
                    cursor.done_from = index;
                    return Ok(Some((cursor.slot, index)));
                }
                None => *cursor = Cursor { slot: cursor.slot + 1, ..Cursor::default() },
            }
        }
    }

    /// Pageblocks of a section that are free and not reported.
    fn unreported(&self, slot: usize, index: usize) -> u64 {
        let region = &self.frames.slots()[slot];
        let Some(section) = region.section(index).known() else { return 0 };
        let mut all = 0;
        for class in Zone::ALL.map(Class::unreported) {
            let here = section.available(class);
            if here == 0 {
                region.tree(class).clear_leaf(index, || section.available(class) == 0);
            }
            all |= here;
        }
        all
    }

    /// Goes on counting until all is counted, or enough.
    pub(super) fn count(
        &self,
        survey: &mut Survey,
        looks: &mut Looks,
        is_enough: impl Fn(&Survey) -> bool,
    ) -> Result<(), Spent> {
        while !is_enough(survey)
            && let Some((slot, index)) = self.next_section(&mut survey.cursor, looks)?
        {
            let region = &self.frames.slots()[slot];
            let candidates = self.unreported(slot, index) & !self.frames.pinned_in(region, index);
            survey.waits += u64::from(candidates.count_ones());
            survey.is_new |= bits_of(candidates).any(|bit| {
                self.frames.block(slot, index, bit).known().is_some_and(|b| !b.counter.was_seen())
            });
        }
        Ok(())
    }

    /// Of what may be reported of a section, what has been free for long enough. The rest is seen now.
    pub(super) fn ripe_in(&self, slot: usize, index: usize, round: &mut Round) -> u64 {
        let pinned = self.frames.pinned_in(&self.frames.slots()[slot], index);
        let mut ripe = 0;
        for bit in bits_of(self.unreported(slot, index) & !pinned) {
            let seen = self.frames.block(slot, index, bit).known().is_some_and(|b| b.counter.see());
            if seen || self.settings.dwell.is_zero() {
                ripe |= 1 << bit;
            } else {
                round.too_young = true;
            }
        }
        ripe
    }

    /// Puts as much of `ripe` into the batch as there is room for, highest first; what has none is
    /// left in the round.
    pub(super) fn take(
        &self,
        (slot, index, mut ripe): (usize, usize, u64),
        batch: &mut Batch,
        room: &mut Room,
        round: &mut Round,
        looks: &mut Looks,
    ) -> Result<(), Spent> {
        let region = &self.frames.slots()[slot];
        let Some(section) = region.section(index).known() else { return Ok(()) };
        // What is left over from the last batch may have been pinned or reported since.
        ripe &= !self.frames.pinned_in(region, index) & !section.reported.load(Ordering::Relaxed);
        let mut tries = TRIES;
        while ripe != 0 {
            round.rest = Some((slot, index, ripe));
            if room.left == 0
                || batch.ranges().len() >= self.settings.most_ranges().min(self.most_ranges)
            {
                return Ok(());
            }
            let zone = section.zone_of(63 - ripe.leading_zeros() as usize);
            let of_zone = ripe & section.zone_mask(zone);
            let spare = self.spare(region.node(), room.left, &mut round.spare, looks)?;
            if spare == 0 {
                // The rest of a node that has no more to spare is seen by now, and stays.
                break;
            }
            let most = match self.most_of_zone(region.node(), zone, batch, room, looks)? {
                Some(0) => return Ok(()),
                Some(most) => most.min(spare).min(self.settings.longest_blocks()).min(room.left),
                // So little of this zone is free that none of it goes.
                None => {
                    ripe &= !of_zone;
                    continue;
                }
            };
            let (first, len) = highest_run(of_zone, most);
            let run = mask(len as usize) << first;
            self.frames.bell().note_sent(zone, len);
            if section.claim_all(run) {
                self.isolate(slot, index, section, run);
                let pinned = run & self.frames.pinned_after_mark(region, index);
                if pinned != 0 {
                    self.publish(slot, index, run, false);
                    ripe &= !pinned;
                    continue;
                }
                let blocks = u64::from(len);
                room.left -= blocks;
                round.spare.unreported = round.spare.unreported.saturating_sub(blocks);
                ripe &= !run;
                let start = region.pfn_at((index * SECTION_PAGEBLOCKS + first) * PAGEBLOCK_FRAMES);
                if let Some(range) =
                    PfnRange::with_len(start, blocks * PAGEBLOCK_FRAMES as u64).known()
                {
                    batch.push(range);
                }
            } else {
                self.frames.bell().note_back(zone, len);
                // Somebody has taken a part of it, and may give it back as it was.
                round.too_young |= !mutant!("what others took is not looked for again");
                tries -= 1;
                if tries == 0 {
                    break;
                }
                ripe &= section.free.load(Ordering::Relaxed);
            }
        }
        round.rest = None;
        Ok(())
    }

    /// How many of `wanted` pageblocks may go from a node, if some are to stay as they are.
    fn spare(
        &self,
        node: NodeId,
        wanted: u64,
        spare: &mut Spare,
        looks: &mut Looks,
    ) -> Result<u64, Spent> {
        let kept = self.settings.kept_blocks();
        if kept == 0 {
            return Ok(wanted);
        }
        if spare.node != Some(node) {
            *spare = Spare { node: Some(node), ..Spare::default() };
        }
        while !spare.is_all && spare.unreported < kept.saturating_add(wanted) {
            match self.next_section(&mut spare.cursor, looks)? {
                Some((slot, index)) if self.frames.slots()[slot].node() == node => {
                    spare.unreported += u64::from(self.unreported(slot, index).count_ones());
                }
                Some(_) => {}
                None => spare.is_all = true,
            }
        }
        Ok(spare.unreported.saturating_sub(kept))
    }

    /// How many pageblocks of a zone of a node may go now, so that what is out stays the share of what
    /// is free that the settings allow. `None`: so little is free that none may go.
    ///
    /// What is out elsewhere is counted as if it were out here, on both sides: so it is not less
    /// careful.
    fn most_of_zone(
        &self,
        node: NodeId,
        zone: Zone,
        batch: &Batch,
        room: &mut Room,
        looks: &mut Looks,
    ) -> Result<Option<u64>, Spent> {
        let share = self.settings.least_free();
        if share == 1 {
            return Ok(Some(u64::MAX));
        }
        let out = self.out + batch.blocks();
        let free = match room.free {
            Some((counted_node, counted_zone, free))
                if (counted_node, counted_zone) == (node, zone) =>
            {
                free
            }
            _ => {
                let enough = out.saturating_add(room.left).saturating_mul(share);
                let free =
                    out + self.count_free(node, zone, enough.saturating_sub(out), share, looks)?;
                room.free = Some((node, zone, free));
                free
            }
        };
        Ok((free >= share).then(|| (free / share).saturating_sub(out)))
    }

    /// Counts free pageblocks of a zone of a node until there are `enough`, from the top: where most
    /// is free. Fewer may be counted than there are, but not fewer than `least` if there are as many.
    fn count_free(
        &self,
        node: NodeId,
        zone: Zone,
        enough: u64,
        least: u64,
        looks: &mut Looks,
    ) -> Result<u64, Spent> {
        let mut half = looks.half()?;
        let mut free = 0;
        let mut all = Ok(());
        let slots = (0..self.frames.regions().len()).rev();
        'slots: for slot in slots.filter(|&slot| self.frames.slots()[slot].node() == node) {
            let region = &self.frames.slots()[slot];
            let tree = region.tree(Class::free(zone));
            let mut end = usize::MAX;
            while let Some(from) = end.checked_sub(1)
                && free < enough
            {
                // The tree does not lead to sections that CPUs allocate from.
                let hinted = self.frames.hinted_sections(zone);
                let hinted =
                    hinted.filter(|&(s, index)| s == slot && index <= from).map(|(_, i)| i);
                let (in_tree, hinted) = (tree.prev(from), hinted.max());
                let Some(index) = in_tree.max(hinted) else { break };
                end = index;
                let available =
                    || region.section(index).known().map_or(0, |s| s.available(Class::free(zone)));
                if hinted != Some(index) {
                    all = half.spend();
                    if all.is_err() {
                        break 'slots;
                    }
                    if available() == 0 {
                        tree.clear_leaf(index, || available() == 0);
                    }
                }
                free += u64::from(available().count_ones());
            }
        }
        looks.give_back(half);
        if free < least { all.map(|()| free) } else { Ok(free) }
    }

    /// Claimed pageblocks go out.
    fn isolate(&self, slot: usize, index: usize, section: &Section, run: u64) {
        for bit in bits_of(run) {
            if let Some(block) = self.frames.block(slot, index, bit).known() {
                block.counter.send_out();
            }
        }
        section.isolated.fetch_or(run, Ordering::AcqRel);
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
                let held =
                    region.section(index).known().map_or(0, |s| s.isolated.load(Ordering::Acquire));
                if held != 0 {
                    blocks += self.publish(slot, index, held, false);
                }
            }
        }
        blocks
    }

    /// Publishes those of `held` that are out.
    fn publish(&self, slot: usize, index: usize, held: u64, reported: bool) -> u64 {
        let Some(section) = self.frames.section(slot, index).known() else { return 0 };
        let is_back = |&bit: &usize| {
            self.frames.block(slot, index, bit).known().is_some_and(|b| b.counter.take_back())
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
        for zone in Zone::ALL {
            let blocks = (back & section.zone_mask(zone)).count_ones();
            self.frames.bell().note_back(zone, blocks);
        }
        u64::from(back.count_ones())
    }

    /// The tree leads to everything that waits: nobody has told it while there was no reporter.
    pub(super) fn find_all(&self) {
        for region in self.frames.regions() {
            for index in 0..region.section_count() {
                let Some(section) = region.section(index).known() else { break };
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
fn highest_run(word: u64, most: u64) -> (usize, u32) {
    let above = word.leading_zeros();
    let run = (word << above).leading_ones();
    // A limit that is too large for the type is no limit here.
    let len = u32::try_from(most).map_or(run, |most| run.min(most));
    ((u64::BITS - above - len) as usize, len)
}
