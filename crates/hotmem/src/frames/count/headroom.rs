//! Checks whether enough frames are free. The cost depends on the number of frames that are needed,
//! not on the size of the machine.

use super::bloom_filter::BloomFilter;
use crate::frames::CallContext;
use crate::geometry::frames_of_blocks;
use crate::platform::Platform;
use crate::sync::Ordering;
use crate::words::{Class, SectionRef, Zone};

impl<P: Platform> CallContext<'_, P> {
    /// Checks that `needed` frames of these zones are free. If fewer are, returns their number as
    /// the error.
    ///
    /// Counts free frames in the order in which an allocation searches for them, and stops when it
    /// has counted `needed` frames. Cost: usually a few loads; at most a few for each CPU and for
    /// each section to which the trees lead.
    pub(crate) fn ensure_free(&self, zones: &[Zone], needed: u64) -> Result<(), u64> {
        let mut count = Count { free_frames: 0, needed };
        match zones.iter().try_for_each(|&zone| self.count_free(zone, &mut count)) {
            Err(EnoughFree) => Ok(()),
            Ok(()) if needed == 0 => Ok(()),
            Ok(()) => Err(count.free_frames),
        }
    }

    /// Counts the free frames of a zone. Counts each frame exactly once if no operation runs at the
    /// same time.
    fn count_free(&self, zone: Zone, count: &mut Count) -> Result<(), EnoughFree> {
        let (free, partial) = (Class::free(zone), Class::partial(zone));
        let wholly_free = |section: SectionRef<'_>| frames_of_blocks(section.available(free));
        let sections = |class| {
            self.words()
                .nodes()
                .flat_map(move |node| self.words().search(node, class).all_read_only())
        };
        // Count the hinted sections first, because usually they suffice. Count each once: two CPUs
        // may have the same hint, and a tree may lead to a hinted section.
        let mut counted = BloomFilter::default();
        for (nth, section) in self.hinted_sections(zone).enumerate() {
            if !counted.test_and_insert(section.to_hint())
                || !self.is_hinted_section(zone, section, nth)
            {
                count.add(wholly_free(section))?;
            }
        }
        for section in sections(free) {
            if !counted.may_have(section.to_hint())
                || !self.is_hinted_section(zone, section, usize::MAX)
            {
                count.add(wholly_free(section))?;
            }
        }
        for section in sections(partial) {
            for block in section.blocks(section.available(partial)) {
                count.add(self.count_takeable(block))?;
            }
        }
        let mut counted = BloomFilter::default();
        for (nth, block) in self.blocks_of_hints_and_cursors(zone).enumerate() {
            let is_found = block.section().partial.load(Ordering::Acquire) & block.mask() != 0;
            let is_new = !counted.test_and_insert(block.to_hint())
                || !self
                    .blocks_of_hints_and_cursors(zone)
                    .take(nth)
                    .any(|before| before.to_hint() == block.to_hint());
            if !is_found && is_new {
                count.add(self.count_takeable(block))?;
            }
        }
        Ok(())
    }
}

/// A count of free frames, which ends when it has reached the number that is needed.
struct Count {
    free_frames: u64,
    needed: u64,
}

/// The error that ends a count: enough frames are free.
struct EnoughFree;

impl Count {
    fn add(&mut self, frames: u64) -> Result<(), EnoughFree> {
        self.free_frames += frames;
        if self.free_frames < self.needed { Ok(()) } else { Err(EnoughFree) }
    }
}
