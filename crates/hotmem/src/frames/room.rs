//! Whether there is room: an answer that costs what is asked for, not how much memory there is.

use super::Frames;
use crate::geometry::{PAGEBLOCK_FRAMES, bits_of};
use crate::known::Known;
use crate::platform::Platform;
use crate::region::{Class, Zone};
use crate::section::{ISOLATED, LIVE, count};
use crate::sync::Ordering;

impl<P: Platform> Frames<P> {
    /// Whether so many frames are free, and if not, how many there are.
    ///
    /// Goes where allocations go, until it has seen enough. Cost: a few loads most of the time, and
    /// a few for each section that has something free, or had when an allocation last came by.
    pub(crate) fn ensure_free(&self, wanted: u64) -> Result<(), u64> {
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
        // What somebody has at hand comes first: most of the time it is enough. A tree may lead to it
        // as well, and two CPUs may have the same.
        let hinted = self.hinted_sections(zone).enumerate();
        let hinted = hinted.filter(move |&(nth, hint)| {
            self.hinted_sections(zone).take(nth).all(|before| before != hint)
        });
        let found = sections(free)
            .filter(move |place| self.hinted_sections(zone).all(|hint| hint != *place));
        let whole = hinted.map(|(_, hint)| hint).chain(found);
        let whole = whole.filter_map(move |(slot, index)| self.section(slot, index));
        let whole = whole.map(move |section| {
            u64::from(section.available(free).count_ones()) * PAGEBLOCK_FRAMES as u64
        });
        let parts = sections(partial).map(move |(slot, index)| {
            let blocks = self.section(slot, index).known();
            let blocks = blocks.map_or(0, |section| section.available(partial));
            let counter =
                |bit| self.block(slot, index, bit).known().map_or(0, |b| b.counter.load());
            bits_of(blocks).map(|bit| grantable(counter(bit))).sum()
        });
        let split = self.hinted_blocks(zone).enumerate().filter(move |(nth, block)| {
            block.section.partial.load(Ordering::Acquire) & block.mask() == 0
                && self.hinted_blocks(zone).take(*nth).all(|before| before.hint() != block.hint())
        });
        let split = split.map(|(_, block)| grantable(block.counter.load()));
        whole.chain(parts).chain(split)
    }
}

/// The frames that a pageblock's counter would grant.
#[inline]
fn grantable(counter: u16) -> u64 {
    if counter & (LIVE | ISOLATED) == LIVE { u64::from(count(counter)) } else { 0 }
}
