//! Searches for the ends of online memory.

use super::Hotplug;
use super::zone_part::ZonePart;
use crate::addr::{Pfn, PfnRange};
use crate::invariant::OrRecordViolation;
use crate::mapping::Map;
use crate::platform::Platform;
use crate::sync::Ordering;
use crate::words::{Class, NodeIndex, ReadCount, SectionRef, Zone};

impl<P: Platform, M: Map> Hotplug<'_, P, M> {
    /// Returns the range from the first to the last online pageblock of a part of a node's memory.
    /// Cost: O(levels).
    pub(super) fn search_span(&self, node: NodeIndex, part: ZonePart) -> PfnRange {
        let class = Class::online(part.zone());
        let search = self.words().search(node, class);
        let bounds = part.bounds(self.zones.low_end());
        let is_in = |section: &SectionRef<'_>| bounds.overlaps(section.range());
        let mut words_read = ReadCount::default();
        let first = search.next_counting_reads(bounds.start(), &mut words_read).filter(is_in);
        let last = search.prev_counting_reads(bounds.end(), &mut words_read).filter(is_in);
        words_read.add(u64::from(first.is_some()) + u64::from(last.is_some()));
        self.zones.probes.add(words_read.words());
        let start = first.map(|s| s.first_block(s.available(class)).start());
        let end = last.map(|s| s.last_block(s.available(class)).end());
        match (start, end) {
            (Some(start), Some(end)) => {
                PfnRange::new(start, end).or_record_violation().unwrap_or(PfnRange::EMPTY)
            }
            _ => PfnRange::EMPTY,
        }
    }

    /// Returns the end of the last online pageblock that begins in `within`. Cost: O(levels) for
    /// each node.
    pub(super) fn last_online(&self, within: PfnRange) -> Option<Pfn> {
        let mut last = None;
        for node in self.words().nodes() {
            last = last.max(self.last_online_of(node, within));
        }
        last
    }

    /// Returns the end of the last online pageblock of `node` that begins in `within`.
    fn last_online_of(&self, node: NodeIndex, within: PfnRange) -> Option<Pfn> {
        let searches = Zone::ALL.map(|zone| self.words().search(node, Class::online(zone)));
        let mut below = within.end();
        loop {
            let mut last: Option<SectionRef<'_>> = None;
            for search in &searches {
                let found = search.prev(below);
                if found.map(SectionRef::start) > last.map(SectionRef::start) {
                    last = found;
                }
            }
            let section = last?;
            // Acquire: makes the words visible that were written before the memory came online.
            let online = section.online.load(Ordering::Acquire) & section.mask_of(within);
            if online != 0 {
                return Some(section.last_block(online).end());
            }
            below = section.start();
            if below <= within.start() {
                return None;
            }
        }
    }
}
