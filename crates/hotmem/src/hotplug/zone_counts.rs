//! Keeps the counts and spans of zones.

use super::probes::Probes;
use super::zone_part::ZonePart;
use crate::addr::{Pfn, PfnRange};
use crate::invariant::OrRecordViolation;
use crate::sync::Ordering;
use crate::sync::untracked::AtomicU64;
use crate::words::{Entry, NodeIndex, SectionWords, Zone};

/// Data that all zones share.
#[derive(Debug, Default)]
pub(super) struct Zones {
    /// The end of low memory. Kernel memory below it is counted apart, as [`ZonePart::Low`].
    low_end: Pfn,
    /// The end of the last section that has boot memory.
    boot_end: Pfn,
    pub(super) probes: Probes,
}

/// The number of online frames, by zone.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ByZone {
    pub(super) kernel: u64,
    pub(super) movable: u64,
}

impl ByZone {
    pub(super) fn get_mut(&mut self, zone: Zone) -> &mut u64 {
        match zone {
            Zone::Kernel => &mut self.kernel,
            Zone::Movable => &mut self.movable,
        }
    }

    /// Returns the counts of an announced range.
    pub(super) fn online_of(entry: &Entry) -> ByZone {
        ByZone::read(&entry.online)
    }

    /// Returns the counts of an announced range, only for its memory on the node that the range was
    /// announced for.
    pub(super) fn online_on_announced_node(entry: &Entry) -> ByZone {
        ByZone::read(&entry.online_on_announced_node)
    }

    /// Reads the counts. Relaxed: only the control path reads and writes them.
    fn read(counts: &[AtomicU64; 2]) -> ByZone {
        let [kernel, movable] = Zone::ALL.map(|zone| counts[zone as usize].load(Ordering::Relaxed));
        ByZone { kernel, movable }
    }
}

/// The counts and the span of a part of a node's memory. Only the control path changes them.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct PartRecord {
    pub(super) spanned: PfnRange,
    pub(super) online: u64,
    /// Frames that are not RAM, in online pageblocks.
    pub(super) holes: u64,
    /// Frames of pageblocks that have no RAM, in the sections in which memory of this part is
    /// online. `holes` does not count them. See `holes.rs`.
    pub(super) hole_pageblock_frames: u64,
}

impl PartRecord {
    /// Returns the record of a part. Returns an empty record if the node has no announced memory.
    ///
    /// Relaxed, here and in `write`: only the control path reads and writes records.
    pub(super) fn of(words: &SectionWords, node: NodeIndex, part: ZonePart) -> PartRecord {
        words.record(node).map_or_else(PartRecord::default, |record| {
            let fields = record.zones[part as usize].each_ref();
            let [start, end, online, holes, hole_pageblock_frames] =
                fields.map(|field| field.load(Ordering::Relaxed));
            let spanned = Pfn::new(start).zip(Pfn::new(end));
            let spanned = spanned.and_then(|(start, end)| PfnRange::new(start, end));
            let spanned = spanned.or_record_violation().unwrap_or(PfnRange::EMPTY);
            PartRecord { spanned, online, holes, hole_pageblock_frames }
        })
    }

    /// Changes the record of a part.
    pub(super) fn change(
        words: &SectionWords,
        node: NodeIndex,
        part: ZonePart,
        change: impl FnOnce(&mut PartRecord),
    ) {
        let mut record = PartRecord::of(words, node, part);
        change(&mut record);
        record.write(words, node, part);
    }

    fn write(self, words: &SectionWords, node: NodeIndex, part: ZonePart) {
        let PartRecord { spanned, online, holes, hole_pageblock_frames } = self;
        // The record was made when the node got its index.
        if let Some(record) = words.record(node).or_record_violation() {
            let (start, end) = (spanned.start().number(), spanned.end().number());
            let fields = [start, end, online, holes, hole_pageblock_frames];
            for (field, value) in record.zones[part as usize].iter().zip(fields) {
                field.store(value, Ordering::Relaxed);
            }
        }
    }

    /// Adds `run`, which came online.
    pub(super) fn grow(&mut self, run: PfnRange) {
        self.online += run.frames();
        self.spanned = if self.spanned.is_empty() {
            run
        } else {
            let start = self.spanned.start().min(run.start());
            PfnRange::new(start, self.spanned.end().max(run.end()))
                .or_record_violation()
                .unwrap_or(run)
        };
    }

    /// Takes `run`, which went offline, out of the counts. Returns whether the span is still right; if
    /// not, the caller must search for the span.
    pub(super) fn shrink(&mut self, run: PfnRange) -> bool {
        let has_gaps = self.spanned.frames() != self.online;
        self.online -= run.frames();
        let (below, from_run) = self.spanned.split_at(run.start());
        let (_, above) = from_run.split_at(run.end());
        match (below.is_empty(), above.is_empty()) {
            (false, false) => return true,
            _ if has_gaps => return false,
            (true, true) => self.spanned = PfnRange::EMPTY,
            (true, false) => self.spanned = above,
            (false, true) => self.spanned = below,
        }
        true
    }
}

impl Zones {
    /// Sets the ends of low memory and of the sections with boot memory. Boot calls this before
    /// anything is online.
    #[cfg(not(loom))]
    pub(super) fn set_ends(&mut self, low_end: Pfn, boot_end: Pfn) {
        (self.low_end, self.boot_end) = (low_end, boot_end);
    }

    /// Returns the end of low memory.
    pub(super) fn low_end(&self) -> Pfn {
        self.low_end
    }

    /// Returns whether a section of `range` may have boot memory.
    pub(super) fn may_have_boot_memory(&self, range: PfnRange) -> bool {
        range.start() < self.boot_end
    }
}
