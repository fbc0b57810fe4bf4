//! Whether there is room: an answer that costs what is asked for, not how much memory there is.

use super::Frames;
use crate::geometry::{PAGEBLOCK_FRAMES, bits_of};
use crate::platform::Platform;
use crate::region::{Class, Zone};
use crate::section::{ISOLATED, LIVE, Section, count};
use crate::sync::Ordering;

impl<P: Platform> Frames<P> {
    /// Whether so many frames are free, and if not, how many there are.
    ///
    /// Goes where allocations go, until it has seen enough. Cost: a few loads most of the time, and
    /// a few for each section that has something free, or had when an allocation last came by.
    pub(crate) fn ensure_free(&self, wanted: u64) -> Result<(), u64> {
        // Most of the time a section that somebody has at hand is enough.
        let at_hand = |zone| {
            let mut sections = self.hinted_sections(zone);
            sections.any(|(slot, index)| {
                let section = self.section(slot, index);
                section.is_some_and(|section| whole(section, Class::free(zone)) >= wanted)
            })
        };
        if Zone::ALL.into_iter().any(at_hand) {
            return Ok(());
        }
        let mut found = 0;
        let mut parts = Zone::ALL.into_iter().flat_map(|zone| self.free_parts(zone));
        while found < wanted {
            found += parts.next().ok_or(found)?;
        }
        Ok(())
    }

    /// The free frames of a zone, by whatever leads to them: each once, while nothing is in flight.
    fn free_parts(&self, zone: Zone) -> impl Iterator<Item = u64> {
        let (free, partial) = (Class::free(zone), Class::partial(zone));
        let sections = |class| {
            self.regions().iter().enumerate().flat_map(move |(slot, region)| {
                let tree = region.tree(class);
                let found = core::iter::successors(tree.peek(0), move |&last| tree.peek(last + 1));
                found.map(move |index| (slot, index))
            })
        };
        let found = sections(free).filter_map(move |(slot, index)| self.section(slot, index));
        // A tree may lead to what is somebody's hint as well, and two CPUs may have the same.
        let hinted = self.hinted_sections(zone).enumerate().filter(move |&(nth, hint)| {
            let (slot, index) = hint;
            !self.slots()[slot].tree(free).leads_to(index)
                && self.hinted_sections(zone).take(nth).all(|before| before != hint)
        });
        let hinted = hinted.filter_map(move |(_, (slot, index))| self.section(slot, index));
        let parts = sections(partial).map(move |(slot, index)| {
            let blocks = self.section(slot, index).map_or(0, |section| section.available(partial));
            let counter = |bit| self.block(slot, index, bit).map_or(0, |b| b.counter.load());
            bits_of(blocks).map(|bit| grantable(counter(bit))).sum()
        });
        let split = self.hinted_blocks(zone).enumerate().filter(move |(nth, block)| {
            block.section.partial.load(Ordering::Acquire) & block.mask() == 0
                && self.hinted_blocks(zone).take(*nth).all(|before| before.hint() != block.hint())
        });
        let split = split.map(|(_, block)| grantable(block.counter.load()));
        found.chain(hinted).map(move |section| whole(section, free)).chain(parts).chain(split)
    }
}

/// The frames of a section in pageblocks that are wholly free.
#[inline]
fn whole(section: &Section, free: Class) -> u64 {
    u64::from(section.available(free).count_ones()) * PAGEBLOCK_FRAMES as u64
}

/// The frames that a pageblock's counter would grant.
#[inline]
fn grantable(counter: u16) -> u64 {
    if counter & (LIVE | ISOLATED) == LIVE { u64::from(count(counter)) } else { 0 }
}
