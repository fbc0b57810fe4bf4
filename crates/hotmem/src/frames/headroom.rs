//! Whether there is room: an answer that costs what is asked for, not how much memory there is.

use super::Frames;
use crate::geometry::PAGEBLOCK_FRAMES;
use crate::platform::Platform;
use crate::sync::Ordering;
use crate::words::{Class, Zone};

impl<P: Platform> Frames<P> {
    /// Whether so many frames of these zones are free, and if not, how many there are.
    ///
    /// Goes where allocations go, until it has seen enough. Cost: a few loads most of the time, and
    /// a few for each section that has something free, or had when an allocation last came by.
    pub(crate) fn ensure_free(&self, zones: &[Zone], wanted: u64) -> Result<(), u64> {
        let mut found = 0;
        let mut parts = zones.iter().flat_map(|&zone| self.free_parts(zone));
        while found < wanted {
            found += parts.next().ok_or(found)?;
        }
        Ok(())
    }

    /// The free frames of a zone, by whatever leads to them: each once, while nothing is in flight.
    fn free_parts(&self, zone: Zone) -> impl Iterator<Item = u64> {
        let (free, partial) = (Class::free(zone), Class::partial(zone));
        let sections = |class| {
            self.words.nodes().flat_map(move |node| self.words.search(node, class).peek_all())
        };
        // What somebody has at hand comes first: most of the time it is enough. A tree may lead to
        // it as well, and two CPUs may have the same.
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
            blocks.map(|block| u64::from(block.state.load().grantable())).sum()
        });
        let split = self.hinted_blocks(zone).enumerate().filter(move |(nth, block)| {
            block.section.partial.load(Ordering::Acquire) & block.mask() == 0
                && self.hinted_blocks(zone).take(*nth).all(|before| before.hint() != block.hint())
        });
        let split = split.map(|(_, block)| u64::from(block.state.load().grantable()));
        whole.chain(parts).chain(split)
    }
}
