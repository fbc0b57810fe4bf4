//! Checks for headroom, at a cost that depends on the frames wanted, not on the size of memory.

use super::Frames;
use crate::geometry::PAGEBLOCK_FRAMES;
use crate::platform::Platform;
use crate::sync::Ordering;
use crate::words::{Class, Zone};

impl<P: Platform> Frames<P> {
    /// Checks that `wanted` frames of these zones are free. Returns the number of free frames if
    /// there are fewer.
    ///
    /// It follows the paths of allocations until it has seen enough. Cost: a few loads most of the
    /// time, and a few for each section that has free memory, or had some when an allocation last
    /// visited it.
    pub(crate) fn ensure_free(&self, zones: &[Zone], wanted: u64) -> Result<(), u64> {
        let mut found = 0;
        let mut parts = zones.iter().flat_map(|&zone| self.free_parts(zone));
        while found < wanted {
            found += parts.next().ok_or(found)?;
        }
        Ok(())
    }

    /// Returns the free frames of a zone, in parts, each frame once while no operation is in
    /// flight.
    fn free_parts(&self, zone: Zone) -> impl Iterator<Item = u64> {
        let (free, partial) = (Class::free(zone), Class::partial(zone));
        let sections = |class| {
            self.words.nodes().flat_map(move |node| self.words.search(node, class).peek_all())
        };
        // The hinted sections come first: most of the time they suffice. A tree may lead to them as
        // well, and two CPUs may have the same one.
        let hinted = self.hinted_sections(zone).enumerate();
        let hinted = hinted.filter(move |&(nth, hint)| {
            self.hinted_sections(zone).take(nth).all(|before| before != hint)
        });
        let found = sections(free)
            .filter(move |section| self.hinted_sections(zone).all(|hint| hint != *section));
        let whole = hinted.map(|(_, hint)| hint).chain(found);
        let whole = whole.map(move |section| {
            u64::from(section.available(free).count_ones()) * PAGEBLOCK_FRAMES as u64
        });
        let parts = sections(partial).map(move |section| {
            let blocks = section.blocks(section.available(partial));
            blocks.map(|block| self.takeable(&block)).sum()
        });
        let split = self.hinted_blocks(zone).enumerate().filter(move |(nth, block)| {
            block.section.partial.load(Ordering::Acquire) & block.mask() == 0
                && self.hinted_blocks(zone).take(*nth).all(|before| before.hint() != block.hint())
        });
        let split = split.map(|(_, block)| self.takeable(&block));
        whole.chain(parts).chain(split)
    }
}
