//! How a region's words lie in the memory reserved for them.

use super::tree::words_needed;
use super::{Class, Counter, Section};
use crate::addr::PfnRange;
use crate::geometry::{SECTION_FRAMES, SECTION_PAGEBLOCKS};
use crate::known::Known;
use crate::sync::AtomicU64;

/// Sections whose counters are interleaved, so that neighbouring pageblocks of one section never
/// share a cache line of counters: two CPUs whose hints are neighbours would otherwise slow each
/// other down more than tenfold. A region's counters fill whole groups of 4 KiB.
pub(super) const COUNTER_GROUP: usize = if cfg!(loom) { 1 } else { 32 };

/// A region's words: how they lie in the memory reserved for them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Layout {
    pub(super) sections: usize,
}

impl Layout {
    /// For a region over `range`.
    pub(crate) fn for_range(range: PfnRange) -> Layout {
        let sections = range.align_outward(SECTION_FRAMES as u64).frames() / SECTION_FRAMES as u64;
        // At most 2^25.
        Layout { sections: usize::try_from(sections).known().unwrap_or(usize::MAX) }
    }

    #[cfg(not(loom))]
    pub(super) const fn counters_at(self) -> usize {
        self.sections * size_of::<Section>()
    }

    /// Where among the counters that of pageblock `bit` of section `index` is.
    #[inline]
    pub(super) const fn counter_at(index: usize, bit: usize) -> usize {
        let (group, within) = (index / COUNTER_GROUP, index % COUNTER_GROUP);
        // One line of a group holds one pageblock of each of its sections, and the line moves on
        // from section to section, so that pageblocks of like position lie apart as well.
        let line = (bit + within * 7) % SECTION_PAGEBLOCKS;
        (group * SECTION_PAGEBLOCKS + line) * COUNTER_GROUP + within
    }

    const fn counters(self) -> usize {
        self.sections.next_multiple_of(COUNTER_GROUP) * SECTION_PAGEBLOCKS
    }

    #[cfg(not(loom))]
    pub(super) const fn trees_at(self) -> usize {
        (self.counters_at() + self.counters() * size_of::<Counter>()).next_multiple_of(64)
    }

    /// Bytes that the words take.
    #[cfg(not(loom))]
    pub(crate) const fn bytes(self) -> usize {
        self.trees_at() + Class::COUNT * words_needed(self.sections) * size_of::<AtomicU64>()
    }
}

/// A region's words in a model.
#[cfg(loom)]
pub(crate) struct ModelWords {
    pub(super) sections: std::boxed::Box<[Section]>,
    pub(super) counters: std::boxed::Box<[Counter]>,
    pub(super) trees: std::boxed::Box<[AtomicU64]>,
}

#[cfg(loom)]
impl ModelWords {
    pub(crate) fn for_range(range: PfnRange) -> ModelWords {
        let layout = Layout::for_range(range);
        fn all<T>(n: usize, make: impl Fn() -> T) -> std::boxed::Box<[T]> {
            (0..n).map(|_| make()).collect()
        }
        ModelWords {
            sections: all(layout.sections, Section::new),
            counters: all(layout.counters(), Counter::new),
            trees: all(Class::COUNT * words_needed(layout.sections), || AtomicU64::new(0)),
        }
    }
}
