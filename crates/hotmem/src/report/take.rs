//! Claims pageblocks to report, and publishes them again.

use super::phase::{Cursor, Headroom, Round, Spare, Spent, StepBudget, Survey};
use super::{Batch, Reporter};
use crate::addr::Pfn;
use crate::geometry::mask;
use crate::platform::Platform;
use crate::sync::Ordering;
use crate::words::{Class, NodeIndex, Part, SectionRef, Zone};

/// How many claims in one section may fail, because other CPUs were faster, before the round
/// continues.
const TRIES: usize = 4;

impl<'f, P: Platform> Reporter<'f, P> {
    /// Returns the next section, in the order of a round, that may have pageblocks to report.
    pub(super) fn next_section(
        &self,
        cursor: &mut Cursor,
        budget: &mut StepBudget,
    ) -> Result<Option<SectionRef<'f>>, Spent> {
        let words = self.frames.words();
        let prev = |node, below| {
            let searches = Zone::ALL.map(|zone| words.search(node, Class::unreported(zone)));
            let found = searches.into_iter().filter_map(|search| search.prev(below));
            found.max_by_key(|section| section.start())
        };
        for node in words.nodes().at_or_above(cursor.node) {
            let below = if node == cursor.node { cursor.done_from } else { Pfn::LIMIT };
            if let Some(section) = prev(node, below) {
                budget.spend()?;
                *cursor = Cursor { node, done_from: section.start() };
                return Ok(Some(section));
            }
        }
        Ok(None)
    }

    /// Returns the pageblocks of a section that are free and not reported.
    fn unreported(section: SectionRef<'_>) -> u64 {
        let mut all = 0;
        for class in Zone::ALL.map(Class::unreported) {
            let here = section.available(class);
            if here == 0 {
                section.hide_if_empty(class);
            }
            all |= here;
        }
        all
    }

    /// Continues a count until it is complete, or has found enough.
    pub(super) fn count(
        &self,
        survey: &mut Survey,
        budget: &mut StepBudget,
        is_enough: impl Fn(&Survey) -> bool,
    ) -> Result<(), Spent> {
        while !is_enough(survey)
            && let Some(section) = self.next_section(&mut survey.cursor, budget)?
        {
            let candidates = Self::unreported(section) & !self.frames.pinned_in(section);
            survey.waits += u64::from(candidates.count_ones());
            survey.is_new |= section.blocks(candidates).any(|block| !block.state().was_seen());
        }
        Ok(())
    }

    /// Returns the pageblocks of a section that may be reported and have been free for long enough,
    /// and marks the other free ones as seen.
    pub(super) fn ripe_in(&self, section: SectionRef<'_>, round: &mut Round) -> u64 {
        let pinned = self.frames.pinned_in(section);
        let mut ripe = 0;
        for block in section.blocks(Self::unreported(section) & !pinned) {
            if block.state().mark_seen() || self.settings.dwell.is_zero() {
                ripe |= block.mask();
            } else {
                round.too_young = true;
            }
        }
        ripe
    }

    /// Adds as many pageblocks of `ripe` to the batch as fit, the highest first, and leaves the
    /// others in the round.
    pub(super) fn take(
        &self,
        (begin, mut ripe): (Pfn, u64),
        batch: &mut Batch,
        room: &mut Headroom,
        round: &mut Round,
        budget: &mut StepBudget,
    ) -> Result<(), Spent> {
        // The pageblocks that did not fit into the last batch may have been withdrawn, pinned or
        // reported since.
        let Some(section) = self.frames.words().section_of(begin) else { return Ok(()) };
        ripe &= !self.frames.pinned_in(section) & !section.reported.load(Ordering::Relaxed);
        let mut tries = TRIES;
        while ripe != 0 {
            round.rest = Some((begin, ripe));
            if room.left == 0 || batch.ranges().len() >= self.settings.most_ranges() {
                return Ok(());
            }
            let zone = section.zone_of(63 - ripe.leading_zeros() as usize);
            let of_zone = ripe & section.zone_mask(zone);
            let spare = self.spare(section.node(), room.left, &mut round.spare, budget)?;
            if spare == 0 {
                // The node has no more pageblocks to spare. Its other pageblocks are marked as seen
                // by now, and stay unreported.
                break;
            }
            let most = match self.most_of_zone(section.node(), zone, batch, room, budget)? {
                Some(0) => return Ok(()),
                Some(most) => most.min(spare).min(self.settings.longest_blocks()).min(room.left),
                // So little memory of this zone is free that none of it may be out.
                None => {
                    ripe &= !of_zone;
                    continue;
                }
            };
            let (first, len) = highest_run(of_zone, most);
            let run = mask(len as usize) << first;
            self.frames.wakeup().note_sent(zone, len);
            if section.claim_all(run) {
                send_out(section, run);
                let pinned = run & self.frames.pinned_after_mark(section);
                if pinned != 0 {
                    self.publish(section, run, false);
                    ripe &= !pinned;
                    continue;
                }
                let blocks = u64::from(len);
                room.left -= blocks;
                round.spare.unreported = round.spare.unreported.saturating_sub(blocks);
                ripe &= !run;
                batch.push(section.pageblocks(first, len as usize));
            } else {
                self.frames.wakeup().note_back(zone, len);
                round.note_taken();
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

    /// Returns how many pageblocks of a node may be reported, without those that must stay
    /// unreported. Stops counting once there are `wanted`.
    fn spare(
        &self,
        node: NodeIndex,
        wanted: u64,
        spare: &mut Spare,
        budget: &mut StepBudget,
    ) -> Result<u64, Spent> {
        let kept = self.settings.kept_blocks();
        if kept == 0 {
            return Ok(wanted);
        }
        if spare.node != Some(node) {
            *spare = Spare { node: Some(node), ..Spare::default() };
        }
        while !spare.is_all && spare.unreported < kept.saturating_add(wanted) {
            match self.next_section(&mut spare.cursor, budget)? {
                Some(section) if section.node() == node => {
                    spare.unreported += u64::from(Self::unreported(section).count_ones());
                }
                Some(_) => {}
                None => spare.is_all = true,
            }
        }
        Ok(spare.unreported.saturating_sub(kept))
    }

    /// Returns how many more pageblocks of a zone of a node may be out, so that the share of free
    /// memory that is out is no larger than the settings allow. `None`: so little memory is free
    /// that none of it may be out.
    ///
    /// Memory of other nodes that is out counts as if it were out here, both as out and as free.
    /// That never makes the limit less strict.
    fn most_of_zone(
        &self,
        node: NodeIndex,
        zone: Zone,
        batch: &Batch,
        room: &mut Headroom,
        budget: &mut StepBudget,
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
                    out + self.count_free(node, zone, enough.saturating_sub(out), share, budget)?;
                room.free = Some((node, zone, free));
                free
            }
        };
        Ok((free >= share).then(|| (free / share).saturating_sub(out)))
    }

    /// Counts free pageblocks of a zone of a node until there are `enough`, from the top, where
    /// most are free. The count may be too low, but it is at least `least` if as many are free.
    fn count_free(
        &self,
        node: NodeIndex,
        zone: Zone,
        enough: u64,
        least: u64,
        budget: &mut StepBudget,
    ) -> Result<u64, Spent> {
        let mut half = budget.half()?;
        let mut free = 0;
        let mut all = Ok(());
        let class = Class::free(zone);
        let search = self.frames.words().search(node, class);
        let mut below = Pfn::LIMIT;
        while free < enough {
            // The trees do not lead to the sections that are CPUs' hints.
            let hinted = self.frames.hinted_sections(zone);
            let hinted = hinted.filter(|s| search.includes(*s) && s.start() < below);
            let hinted = hinted.max_by_key(|section| section.start());
            let found = hinted.into_iter().chain(search.prev(below));
            let Some(section) = found.max_by_key(|section| section.start()) else { break };
            below = section.start();
            if hinted != Some(section) {
                all = half.spend();
                if all.is_err() {
                    break;
                }
                if section.available(class) == 0 {
                    section.hide_if_empty(class);
                }
            }
            free += u64::from(section.available(class).count_ones());
        }
        budget.give_back(half);
        if free < least { all.map(|()| free) } else { Ok(free) }
    }

    /// Publishes the pageblocks of a batch again, and returns how many there were.
    pub(super) fn come_back(&mut self, batch: &Batch, reported: bool) -> u64 {
        if batch.generation != self.frames.wakeup().generation() {
            return 0;
        }
        self.out = self.out.saturating_sub(batch.blocks());
        let parts = batch.ranges().iter().flat_map(|&range| self.frames.words().parts(range));
        parts.map(|Part { section, blocks }| self.publish(section, blocks, reported)).sum()
    }

    /// Publishes everything that is out, and returns how many pageblocks it was.
    pub(super) fn reclaim(&self) -> u64 {
        let mut blocks = 0;
        for section in self.frames.words().sections() {
            let held = section.isolated.load(Ordering::Acquire);
            if held != 0 {
                blocks += self.publish(section, held, false);
            }
        }
        blocks
    }

    /// Publishes those of `held` that are out, and returns how many there were.
    fn publish(&self, section: SectionRef<'_>, held: u64, reported: bool) -> u64 {
        let back = section.blocks(held).filter(|block| block.state().clear_reporting());
        let back = back.fold(0, |word, block| word | block.mask());
        if back == 0 {
            return 0;
        }
        let mut moves = self.frames.no_moves_yet();
        moves.start();
        section.isolated.fetch_and(!back, Ordering::AcqRel);
        let whole = self.frames.divide_around_poison(section, back, &mut moves);
        if reported {
            // Before the publish, which makes the mark visible.
            section.reported.fetch_or(whole, Ordering::Relaxed);
            self.frames.wakeup().note_withdrawn(back & !whole);
        }
        if whole != 0 {
            self.frames.show_free(section, whole, &mut moves);
        }
        for zone in Zone::ALL {
            let blocks = (back & section.zone_mask(zone)).count_ones();
            self.frames.wakeup().note_back(zone, blocks);
        }
        u64::from(back.count_ones())
    }

    /// Makes the tree lead to all memory that waits to be reported: no code updated the tree while
    /// there was no reporter.
    pub(super) fn find_all(&self) {
        for section in self.frames.words().sections() {
            for class in Zone::ALL.map(Class::unreported) {
                // `SeqCst`: see `frames/wakeup.rs`.
                if section.free.load(Ordering::SeqCst) != 0 && section.available(class) != 0 {
                    section.make_findable(class);
                }
            }
        }
    }
}

/// Marks claimed pageblocks as out for reporting.
fn send_out(section: SectionRef<'_>, run: u64) {
    section.blocks(run).for_each(|block| block.state().mark_reporting());
    section.isolated.fetch_or(run, Ordering::AcqRel);
}

/// Returns the highest run of set bits, or the upper part of it: its first bit and its length,
/// which is at most `most`.
fn highest_run(word: u64, most: u64) -> (usize, u32) {
    let above = word.leading_zeros();
    let run = (word << above).leading_ones();
    // A limit that is too large for the type is no limit here.
    let len = u32::try_from(most).map_or(run, |most| run.min(most));
    ((u64::BITS - above - len) as usize, len)
}
