//! Checks whether enough frames are free. The cost depends on the number of frames that are needed,
//! not on the size of the machine.

use super::Frames;
use super::numbers::BloomFilter;
use crate::geometry::PAGEBLOCK_FRAMES;
use crate::platform::Platform;
use crate::sync::Ordering;
use crate::words::{Class, SectionRef, Zone};

impl<P: Platform> Frames<P> {
    /// Checks that `needed` frames of these zones are free. If fewer are, returns their number as
    /// the error.
    ///
    /// Finds free frames in the order of an allocation, until it has found enough. Cost: usually a
    /// few loads; at most a few for each CPU and for each section to which the trees lead.
    pub(crate) fn ensure_free(&self, zones: &[Zone], needed: u64) -> Result<(), u64> {
        let mut count = Count { found: 0, needed };
        match zones.iter().try_for_each(|&zone| self.count_free(zone, &mut count)) {
            Err(Enough) => Ok(()),
            Ok(()) if needed == 0 => Ok(()),
            Ok(()) => Err(count.found),
        }
    }

    /// Counts the free frames of a zone. While no operation is in flight, counts each frame once.
    fn count_free(&self, zone: Zone, count: &mut Count) -> Result<(), Enough> {
        let (free, partial) = (Class::free(zone), Class::partial(zone));
        let whole = |section: SectionRef<'_>| {
            u64::from(section.available(free).count_ones()) * PAGEBLOCK_FRAMES as u64
        };
        let sections = |class| {
            self.words.nodes().flat_map(move |node| self.words.search(node, class).peek_all())
        };
        // Count the hinted sections first, because usually they suffice. Count each once: two CPUs
        // may have the same hint, and a tree may lead to a hinted section.
        let hinted = || self.hinted_sections(zone);
        let mut seen = BloomFilter::default();
        for (nth, section) in hinted().enumerate() {
            if !seen.insert(section.hint()) || hinted().take(nth).all(|before| before != section) {
                count.add(whole(section))?;
            }
        }
        for section in sections(free) {
            if !seen.may_have(section.hint()) || hinted().all(|other| other != section) {
                count.add(whole(section))?;
            }
        }
        for section in sections(partial) {
            for block in section.blocks(section.available(partial)) {
                count.add(self.takeable(&block))?;
            }
        }
        let named = || self.blocks_of_hints_and_cursors(zone).map(|block| block.hint());
        let mut seen = BloomFilter::default();
        for (nth, block) in self.blocks_of_hints_and_cursors(zone).enumerate() {
            let is_found = block.section.partial.load(Ordering::Acquire) & block.mask() != 0;
            let is_new = !seen.insert(block.hint())
                || named().take(nth).all(|before| before != block.hint());
            if !is_found && is_new {
                count.add(self.takeable(&block))?;
            }
        }
        Ok(())
    }
}

/// A count of free frames, which ends when it has reached the number that is needed.
struct Count {
    found: u64,
    needed: u64,
}

/// The error that ends a count: enough frames are free.
struct Enough;

impl Count {
    fn add(&mut self, frames: u64) -> Result<(), Enough> {
        self.found += frames;
        if self.found < self.needed { Ok(()) } else { Err(Enough) }
    }
}
