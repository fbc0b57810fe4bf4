//! Counts and claims pageblocks to report, and publishes them again.

use super::phase::{
    BudgetSpent, Headroom, Position, Round, StepBudget, UnreportedCount, WaitingCount,
};
use super::{Batch, Reporter};
use crate::addr::{Pfn, PfnRange};
use crate::frames::Contents;
use crate::geometry::mask;
use crate::platform::Platform;
use crate::sync::{Ordering, mutant};
use crate::words::{Class, NodeIndex, SectionPart, SectionRef, Zeroed, Zone};

/// The number of claims in one section that may fail, because another CPU was faster, before the
/// round goes on to the next section.
const MAX_FAILED_CLAIMS: usize = 4;

/// What the host has said about memory that was reporting.
#[derive(Clone, Copy)]
enum HostAnswer {
    /// Nothing, or that it has not taken the RAM.
    None,
    /// It has taken the RAM. When the pageblocks of `zeroed` are used again, they are zero.
    Taken { zeroed: Zeroed },
}

impl<'f, P: Platform> Reporter<'f, P> {
    /// Returns the next section, in the order of a round, that may have pageblocks to report. Moves
    /// the position to it.
    pub(super) fn next_section(
        &self,
        position: &mut Position,
        budget: &mut StepBudget,
    ) -> Result<Option<SectionRef<'f>>, BudgetSpent> {
        let words = self.frames.words();
        let prev = |node, below| {
            let searches = Zone::ALL.map(|zone| words.search(node, Class::unreported(zone)));
            let found = searches.into_iter().filter_map(|search| search.prev(below));
            found.max_by_key(|section| section.start())
        };
        for node in words.nodes().at_or_above(position.node) {
            let below = if node == position.node { position.done_from } else { Pfn::LIMIT };
            if let Some(section) = prev(node, below) {
                budget.spend()?;
                *position = Position { node, done_from: section.start() };
                return Ok(Some(section));
            }
        }
        Ok(None)
    }

    /// Returns the pageblocks of a section that are free and not reported. If a zone has none,
    /// hides the section from searches of that zone's unreported memory.
    fn unreported(&self, section: SectionRef<'_>) -> u64 {
        let mut unreported = 0;
        for class in Zone::ALL.map(Class::unreported) {
            let available = section.available(class);
            if available == 0 {
                section.hide_if_empty(self.frames.words(), class);
            }
            unreported |= available;
        }
        unreported
    }

    /// Continues a count until it is complete, or until `is_enough` returns true.
    pub(super) fn count_waiting(
        &self,
        count: &mut WaitingCount,
        budget: &mut StepBudget,
        is_enough: impl Fn(&WaitingCount) -> bool,
    ) -> Result<(), BudgetSpent> {
        let call = self.frames.call();
        while !is_enough(count)
            && let Some(section) = self.next_section(&mut count.position, budget)?
        {
            let candidates = self.unreported(section) & !call.pinned_in(section);
            count.waiting_blocks += u64::from(candidates.count_ones());
            count.has_unseen |= section.blocks(candidates).any(|block| !block.state().was_seen());
        }
        Ok(())
    }

    /// Returns the pageblocks of a section that may be reported and have been free for long enough,
    /// and marks the other free ones as seen.
    pub(super) fn collect_reportable(&self, section: SectionRef<'_>, round: &mut Round) -> u64 {
        let pinned = self.frames.call().pinned_in(section);
        let mut reportable = 0;
        for block in section.blocks(self.unreported(section) & !pinned) {
            if block.state().mark_seen() || self.settings.min_free_time.is_zero() {
                reportable |= block.mask();
            } else {
                round.needs_another_round = true;
            }
        }
        reportable
    }

    /// Claims pageblocks of `reportable`, the highest first, and adds them to the batch. Those that
    /// do not fit into the batch stay in `round.unclaimed_blocks`.
    pub(super) fn claim_into_batch(
        &self,
        (section_start, mut reportable): (Pfn, u64),
        batch: &mut Batch,
        headroom: &mut Headroom,
        round: &mut Round,
        budget: &mut StepBudget,
    ) -> Result<(), BudgetSpent> {
        // Look again: the pageblocks that did not fit into the last batch may have been withdrawn,
        // pinned or reported since.
        let Some(section) = self.frames.words().section_of(section_start) else { return Ok(()) };
        let call = self.frames.call();
        reportable &= !call.pinned_in(section) & !section.reported.load(Ordering::Relaxed);
        let mut claims_left = MAX_FAILED_CLAIMS;
        while reportable != 0 {
            round.unclaimed_blocks = Some((section_start, reportable));
            if headroom.blocks_left == 0 || batch.len() >= self.settings.max_ranges() {
                return Ok(());
            }
            let zone = section.zone_of(63 - reportable.leading_zeros() as usize);
            let of_zone = reportable & section.zone_mask(zone);
            let node = section.node(self.frames.words());
            let spare =
                self.count_spare(node, headroom.blocks_left, &mut round.unreported_count, budget)?;
            if spare == 0 {
                // The other free pageblocks of the node must stay unreported. They are marked as
                // seen by now.
                break;
            }
            let most = match self.more_reporting_in_zone(node, zone, batch, headroom, budget)? {
                Some(0) => return Ok(()),
                Some(most) => {
                    most.min(spare).min(self.settings.max_range_blocks()).min(headroom.blocks_left)
                }
                // Too little memory of this zone is free, so none of it may be reporting.
                None => {
                    reportable &= !of_zone;
                    continue;
                }
            };
            let (first, len) = highest_run(of_zone, most);
            let run = mask(len as usize) << first;
            self.frames.wakeup().note_sent(zone, len);
            if call.claim_all(section, run).is_some() {
                mark_as_reporting(section, run);
                let pinned = run & call.pinned_after_mark(section);
                if pinned != 0 {
                    mutant!("memory that a pin keeps from the host is marked as zero" => section.mark_zeroed(Zeroed::known(run)));
                    self.publish(section, run, HostAnswer::None);
                    reportable &= !pinned;
                    continue;
                }
                let blocks = u64::from(len);
                headroom.blocks_left -= blocks;
                round.unreported_count.unreported_blocks =
                    round.unreported_count.unreported_blocks.saturating_sub(blocks);
                reportable &= !run;
                batch.push(section.pageblocks(first, len as usize));
            } else {
                self.frames.wakeup().note_returned(zone, len);
                round.note_allocated();
                claims_left -= 1;
                if claims_left == 0 {
                    break;
                }
                reportable &= section.free.load(Ordering::Relaxed);
            }
        }
        round.unclaimed_blocks = None;
        Ok(())
    }

    /// Returns the number of unreported free pageblocks of a node, minus the number that must stay
    /// unreported. Stops counting once the result is `wanted`.
    fn count_spare(
        &self,
        node: NodeIndex,
        wanted: u64,
        count: &mut UnreportedCount,
        budget: &mut StepBudget,
    ) -> Result<u64, BudgetSpent> {
        let kept_unreported = self.settings.kept_blocks();
        if kept_unreported == 0 {
            return Ok(wanted);
        }
        if count.node != Some(node) {
            *count = UnreportedCount { node: Some(node), ..UnreportedCount::default() };
        }
        while !count.is_complete && count.unreported_blocks < kept_unreported.saturating_add(wanted)
        {
            match self.next_section(&mut count.position, budget)? {
                Some(section) if section.node(self.frames.words()) == node => {
                    count.unreported_blocks += u64::from(self.unreported(section).count_ones());
                }
                Some(_) => {}
                None => count.is_complete = true,
            }
        }
        Ok(count.unreported_blocks.saturating_sub(kept_unreported))
    }

    /// Returns the number of further pageblocks of a zone of a node that may be reporting, so that
    /// the share of free memory that is reporting is no larger than the settings allow. Returns
    /// `None` if too little memory is free, so that none of it may be reporting.
    ///
    /// Memory of other nodes and zones that is reporting counts as if it belonged to this zone and
    /// node, both as reporting and as free. This can only make the limit stricter.
    fn more_reporting_in_zone(
        &self,
        node: NodeIndex,
        zone: Zone,
        batch: &Batch,
        headroom: &mut Headroom,
        budget: &mut StepBudget,
    ) -> Result<Option<u64>, BudgetSpent> {
        let share = self.settings.free_blocks_per_reporting();
        if share == 1 {
            return Ok(Some(u64::MAX));
        }
        let reporting_blocks = self.blocks_reporting + batch.blocks();
        let free = match headroom.free_blocks {
            Some((counted_node, counted_zone, free))
                if (counted_node, counted_zone) == (node, zone) =>
            {
                free
            }
            _ => {
                let enough =
                    reporting_blocks.saturating_add(headroom.blocks_left).saturating_mul(share);
                let free = reporting_blocks
                    + self.count_free(
                        node,
                        zone,
                        enough.saturating_sub(reporting_blocks),
                        share,
                        budget,
                    )?;
                headroom.free_blocks = Some((node, zone, free));
                free
            }
        };
        Ok((free >= share).then(|| (free / share).saturating_sub(reporting_blocks)))
    }

    /// Counts free pageblocks of a zone of a node, from the top, where most are free, until the
    /// count is `enough`. If the budget is used up earlier, the count may be too low; if it is then
    /// below `least`, this returns [`BudgetSpent`] instead.
    fn count_free(
        &self,
        node: NodeIndex,
        zone: Zone,
        enough: u64,
        least: u64,
        budget: &mut StepBudget,
    ) -> Result<u64, BudgetSpent> {
        let mut half = budget.half()?;
        let call = self.frames.call();
        let mut free = 0;
        let mut has_budget = Ok(());
        let class = Class::free(zone);
        let search = self.frames.words().search(node, class);
        let mut below = Pfn::LIMIT;
        while free < enough {
            // Look at the sections that are CPUs' hints too: the trees may not lead to them.
            let hinted = call.hinted_sections(zone);
            let hinted = hinted.filter(|s| search.includes(*s) && s.start() < below);
            let hinted = hinted.max_by_key(|section| section.start());
            let sections = hinted.into_iter().chain(search.prev(below));
            let Some(section) = sections.max_by_key(|section| section.start()) else { break };
            below = section.start();
            if hinted != Some(section) {
                has_budget = half.spend();
                if has_budget.is_err() {
                    break;
                }
                if section.available(class) == 0 {
                    section.hide_if_empty(self.frames.words(), class);
                }
            }
            free += u64::from(section.available(class).count_ones());
        }
        budget.add_rest(half);
        if free < least { has_budget.map(|()| free) } else { Ok(free) }
    }

    /// Publishes the pageblocks of a batch again, whose RAM the host has taken, and which contain
    /// what `contents_of` says. Returns their number, or 0 if the batch is void.
    pub(super) fn publish_reported(
        &mut self,
        batch: &Batch,
        mut contents_of: impl FnMut(PfnRange) -> Contents,
    ) -> u64 {
        let mut blocks = 0;
        for SectionPart { section, blocks: sent } in self.parts_to_publish(batch) {
            let zeroed = self.frames.call().zeroed_if(section, sent, |block| {
                contents_of(block.range()) == Contents::Filled(0)
            });
            blocks += self.publish(section, sent, HostAnswer::Taken { zeroed });
        }
        blocks
    }

    /// Publishes the pageblocks of a batch again, which the host has refused.
    pub(super) fn publish_refused(&mut self, batch: &Batch) {
        for SectionPart { section, blocks } in self.parts_to_publish(batch) {
            self.publish(section, blocks, HostAnswer::None);
        }
    }

    /// Returns the pageblocks of a batch, which are to be published now; none if the batch is void.
    fn parts_to_publish<'b>(
        &mut self,
        batch: &'b Batch,
    ) -> impl Iterator<Item = SectionPart<'f>> + use<'b, 'f, P> {
        let is_void = batch.generation != self.frames.wakeup().generation();
        if !is_void {
            self.blocks_reporting = self.blocks_reporting.saturating_sub(batch.blocks());
        }
        let words = self.frames.words();
        let ranges = batch.iter().filter(move |_| !is_void);
        ranges.flat_map(|&range| words.section_parts(range))
    }

    /// Publishes all pageblocks that are reporting. Returns their number.
    pub(super) fn publish_all_reporting(&self) -> u64 {
        let mut blocks = 0;
        for section in self.frames.words().sections() {
            let held = section.isolated.load(Ordering::Acquire);
            if held != 0 {
                blocks += self.publish(section, held, HostAnswer::None);
            }
        }
        blocks
    }

    /// Publishes those pageblocks of `held` that are reporting. Returns their number.
    fn publish(&self, section: SectionRef<'_>, held: u64, answer: HostAnswer) -> u64 {
        let returned = section.blocks(held).filter(|block| block.state().clear_reporting());
        let returned = returned.fold(0, |word, block| word | block.mask());
        if returned == 0 {
            return 0;
        }
        let call = self.frames.call();
        call.start_hiding();
        section.isolated.fetch_and(!returned, Ordering::AcqRel);
        let without_poison = call.divide_around_poison(section, returned);
        if let HostAnswer::Taken { zeroed } = answer {
            // Set the marks before the publish, which makes them visible.
            mark_as_reported(section, without_poison);
            mutant!("a pageblock that is divided around poison is marked as zero" => {
                section.mark_zeroed(zeroed.among(returned));
            });
            section.mark_zeroed(zeroed.among(without_poison));
            self.frames.wakeup().note_withdrawn(returned & !without_poison);
        }
        if without_poison != 0 {
            call.publish_blocks(section, without_poison);
        }
        for zone in Zone::ALL {
            let blocks = (returned & section.zone_mask(zone)).count_ones();
            self.frames.wakeup().note_returned(zone, blocks);
        }
        u64::from(returned.count_ones())
    }

    /// Makes the tree lead to all memory that waits to be reported. No code has updated this tree
    /// while the reporter was off.
    pub(super) fn make_all_findable(&self) {
        for section in self.frames.words().sections() {
            for class in Zone::ALL.map(Class::unreported) {
                // `SeqCst`: see `frames/wakeup.rs`.
                if section.free.load(Ordering::SeqCst) != 0 && section.available(class) != 0 {
                    section.make_findable(self.frames.words(), class);
                }
            }
        }
    }
}

/// Marks claimed pageblocks as reporting.
fn mark_as_reporting(section: SectionRef<'_>, run: u64) {
    section.blocks(run).for_each(|block| block.state().mark_reporting());
    section.isolated.fetch_or(run, Ordering::AcqRel);
}

/// Marks pageblocks as reported. The caller owns them, and publishes them afterwards.
fn mark_as_reported(section: SectionRef<'_>, blocks: u64) {
    section.reported.fetch_or(blocks, Ordering::Relaxed);
}

/// Returns the highest run of set bits as its first bit and its length. If the run is longer than
/// `most`, returns its upper part of `most` bits.
fn highest_run(word: u64, most: u64) -> (usize, u32) {
    let above = word.leading_zeros();
    let run = (word << above).leading_ones();
    // If `most` does not fit into a `u32`, it is larger than any run.
    let len = u32::try_from(most).map_or(run, |most| run.min(most));
    ((u64::BITS - above - len) as usize, len)
}
