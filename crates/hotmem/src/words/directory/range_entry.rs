//! Holds one announced range: a place of the list in `ranges.rs`.

use crate::addr::{Pfn, PfnRange};
use crate::sync::Ordering;
use crate::sync::untracked::AtomicU64;

const BOOT: u64 = 1 << 32;
const NODES_VARY: u64 = 1 << 33;
const GROUP_SHIFT: u32 = 56;

/// One announced range.
#[repr(C)]
pub(crate) struct Entry {
    start: AtomicU64,
    /// The end of the range, or 0 if the place is vacant. It is stored with Release and loaded with
    /// Acquire, so that a reader that finds the range also finds the other fields.
    end: AtomicU64,
    /// The number of the node, the flags [`BOOT`] and [`NODES_VARY`], and the group in the bits from
    /// [`GROUP_SHIFT`] up.
    node: AtomicU64,
    /// The number of the announcement, which is unique in this process. `Hotplug::announce` sets
    /// it.
    pub(crate) id: AtomicU64,
    /// The number of online frames, by zone.
    pub(crate) online: [AtomicU64; 2],
    /// The number of online frames, by zone, that are on the node that the range was announced for.
    /// This is less than `online` if some sections were added to another node.
    pub(crate) online_on_announced_node: [AtomicU64; 2],
}

#[cfg(not(loom))]
const _: () = assert!(size_of::<Entry>() == 64);

impl Entry {
    pub(super) const fn unused() -> Entry {
        Entry {
            start: AtomicU64::new(0),
            end: AtomicU64::new(0),
            node: AtomicU64::new(0),
            id: AtomicU64::new(0),
            online: [const { AtomicU64::new(0) }; 2],
            online_on_announced_node: [const { AtomicU64::new(0) }; 2],
        }
    }

    /// Returns the range, if there is one.
    pub(crate) fn range(&self) -> Option<PfnRange> {
        let end = self.end.load(Ordering::Acquire);
        let start = self.start.load(Ordering::Relaxed);
        if end == 0 { None } else { PfnRange::new(Pfn::new(start)?, Pfn::new(end)?) }
    }

    /// Returns the range, if there is one and it overlaps `range`, which is not empty.
    pub(super) fn range_overlapping(&self, range: PfnRange) -> Option<PfnRange> {
        let end = self.end.load(Ordering::Acquire);
        let start = self.start.load(Ordering::Relaxed);
        let overlaps = range.start().number() < end && start < range.end().number();
        if overlaps { PfnRange::new(Pfn::new(start)?, Pfn::new(end)?) } else { None }
    }

    /// Stores a range in a place that is vacant. The number of the announcement stays.
    pub(super) fn set(&self, range: PfnRange, node: u32, is_boot: bool) {
        self.start.store(range.start().number(), Ordering::Relaxed);
        let boot = if is_boot { BOOT } else { 0 };
        self.node.store(u64::from(node) | boot, Ordering::Relaxed);
        let counts = self.online.iter().chain(&self.online_on_announced_node);
        counts.for_each(|count| count.store(0, Ordering::Relaxed));
        self.end.store(range.end().number(), Ordering::Release);
    }

    /// Makes the place vacant.
    pub(super) fn set_vacant(&self) {
        self.end.store(0, Ordering::Release);
    }

    /// Returns the number of the node.
    #[allow(clippy::cast_possible_truncation, reason = "the number is in the low 32 bits")]
    pub(crate) fn node(&self) -> u32 {
        self.node.load(Ordering::Relaxed) as u32
    }

    /// Returns whether the range is boot memory, which is never removed.
    pub(crate) fn is_boot(&self) -> bool {
        self.node.load(Ordering::Relaxed) & BOOT != 0
    }

    /// Returns whether additions name the nodes of the range's parts.
    pub(super) fn nodes_vary(&self) -> bool {
        self.node.load(Ordering::Relaxed) & NODES_VARY != 0
    }

    /// Sets whether additions name the nodes of the parts of a range that was just announced.
    pub(crate) fn set_nodes_vary(&self, nodes_vary: bool) {
        let flag = if nodes_vary { NODES_VARY } else { 0 };
        let node = self.node.load(Ordering::Relaxed);
        self.node.store(node | flag, Ordering::Relaxed);
    }

    /// Returns the group of the range, which says how the range is brought online and taken
    /// offline: see `hotplug/policy.rs`. A new range has group 0.
    #[allow(clippy::cast_possible_truncation, reason = "the highest 8 bits")]
    pub(crate) fn group(&self) -> u8 {
        (self.node.load(Ordering::Relaxed) >> GROUP_SHIFT) as u8
    }

    /// Sets the group of a range that was just announced.
    pub(crate) fn set_group(&self, group: u8) {
        let node = self.node.load(Ordering::Relaxed);
        self.node.store(node | u64::from(group) << GROUP_SHIFT, Ordering::Relaxed);
    }
}
