//! What is kept of zones: changed by boot, online and offline only.

use super::probes::Probes;
use super::zone_part::ZonePart;
use crate::addr::{Pfn, PfnRange};
use crate::known::Known;
use crate::sync::Ordering;
use crate::sync::settled::AtomicU64;
use crate::words::{Entry, NodeIndex, Words, Zone};

/// What all zones have in common.
#[derive(Debug)]
pub(super) struct Zones {
    /// Kernel memory below this is counted apart.
    low_end: Pfn,
    /// No section at or above this has boot memory.
    boot_end: Pfn,
    pub(super) probes: Probes,
}

/// Frames online, by zone.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ByZone {
    pub(super) kernel: u64,
    pub(super) movable: u64,
}

impl ByZone {
    pub(super) fn of(&mut self, zone: Zone) -> &mut u64 {
        match zone {
            Zone::Kernel => &mut self.kernel,
            Zone::Movable => &mut self.movable,
        }
    }

    /// What is online of an announced range.
    pub(super) fn online_of(entry: &Entry) -> ByZone {
        ByZone::read(&entry.online)
    }

    /// What is online of an announced range on the node that it was announced for.
    pub(super) fn at_home_of(entry: &Entry) -> ByZone {
        ByZone::read(&entry.at_home)
    }

    /// Relaxed: only the control path reads and writes them.
    fn read(counts: &[AtomicU64; 2]) -> ByZone {
        let [kernel, movable] = Zone::ALL.map(|zone| counts[zone as usize].load(Ordering::Relaxed));
        ByZone { kernel, movable }
    }
}

/// What is kept of a part of a node's memory: changed by boot, online and offline only.
#[derive(Clone, Copy, Debug)]
pub(super) struct Kept {
    pub(super) spanned: PfnRange,
    pub(super) online: u64,
    /// Frames of online pageblocks that are no memory.
    pub(super) holes: u64,
    /// Frames of the holes in all sections in which some of it is online (see `holes.rs`).
    pub(super) holes_beside: u64,
    /// Frames of memory that hold descriptors, or that boot reserved and
    /// [`free_reserved`](super::Hotplug::free_reserved) has not had.
    pub(super) unmanaged: u64,
}

impl Kept {
    const NONE: Kept =
        Kept { spanned: PfnRange::EMPTY, online: 0, holes: 0, holes_beside: 0, unmanaged: 0 };

    /// Of a node on which nothing was ever announced: nothing.
    ///
    /// Relaxed, here and below: only the control path reads and writes it.
    pub(super) fn of(words: &Words, node: NodeIndex, part: ZonePart) -> Kept {
        words.record(node).map_or(Kept::NONE, |record| {
            let fields = record.zones[part as usize].each_ref();
            let [start, end, online, holes, holes_beside, unmanaged] =
                fields.map(|field| field.load(Ordering::Relaxed));
            let spanned = Pfn::new(start).zip(Pfn::new(end));
            let spanned = spanned.and_then(|(start, end)| PfnRange::new(start, end));
            let spanned = spanned.known().unwrap_or(PfnRange::EMPTY);
            Kept { spanned, online, holes, holes_beside, unmanaged }
        })
    }

    /// Changes what is kept.
    pub(super) fn change<T>(
        words: &Words,
        node: NodeIndex,
        part: ZonePart,
        change: impl FnOnce(&mut Kept) -> T,
    ) -> T {
        let mut kept = Kept::of(words, node, part);
        let changed = change(&mut kept);
        let Kept { spanned, online, holes, holes_beside, unmanaged } = kept;
        // Made when the node was named.
        if let Some(record) = words.record(node).known() {
            let (start, end) = (spanned.start().number(), spanned.end().number());
            let fields = [start, end, online, holes, holes_beside, unmanaged];
            for (field, value) in record.zones[part as usize].iter().zip(fields) {
                field.store(value, Ordering::Relaxed);
            }
        }
        changed
    }

    /// `run` came online; `own` frames of it are not managed.
    pub(super) fn grow(&mut self, run: PfnRange, own: u64) {
        self.online += run.frames();
        self.unmanaged += own;
        self.spanned = if self.spanned.is_empty() {
            run
        } else {
            let start = self.spanned.start().min(run.start());
            PfnRange::new(start, self.spanned.end().max(run.end())).known().unwrap_or(run)
        };
    }

    /// `run` went offline. Whether it is known what is spanned now; if not, it has to be looked for.
    pub(super) fn shrink(&mut self, run: PfnRange, unmanaged: u64) -> bool {
        let has_gaps = self.spanned.frames() != self.online;
        self.online -= run.frames();
        self.unmanaged -= unmanaged;
        let (below, rest) = self.spanned.split_at(run.start());
        let (_, above) = rest.split_at(run.end());
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
    pub(super) const fn new() -> Zones {
        Zones { low_end: Pfn::ZERO, boot_end: Pfn::ZERO, probes: Probes::new() }
    }

    /// Boot says where low memory and the sections with boot memory end, before anything is online.
    #[cfg(not(loom))]
    pub(super) fn set_ends(&mut self, low_end: Pfn, boot_end: Pfn) {
        (self.low_end, self.boot_end) = (low_end, boot_end);
    }

    /// Where low memory ends.
    pub(super) fn low_end(&self) -> Pfn {
        self.low_end
    }

    /// Whether a section of `range` may have boot memory.
    pub(super) fn may_have_boot_memory(&self, range: PfnRange) -> bool {
        range.start() < self.boot_end
    }
}
