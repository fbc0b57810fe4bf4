//! An announced range and its dense, type-stable words.
//!
//! The words are reserved when the range is announced, for its maximum: 192 bytes a section
//! and a byte for the trees, 0.00015 % of the memory, and up to 8 KiB a range. A withdrawn range's
//! slot and words are used again by the next one that fits.

#[cfg(loom)]
use super::layout::ModelWords;
use super::layout::{COUNTER_GROUP, Layout};
use super::tree::{Tree, words_needed};
use super::{Class, Counter, NodeId, Section};
use crate::addr::{Pfn, PfnRange};
use crate::geometry::{
    PAGEBLOCK_FRAMES, SECTION_FRAMES, SECTION_MASK, SECTION_PAGEBLOCKS, TREE_FANOUT,
};
use crate::known::Known;
use crate::sync::settled::{self, AtomicPtr, AtomicUsize};
use crate::sync::{AtomicU64, Ordering};

/// Most regions that can be announced at one time: a bit each in one word.
pub const MAX_REGIONS: usize = if cfg!(loom) { 1 } else { 64 };

/// Sections whose bits at the bottom of a tree lie in one cache line.
const LEAVES_IN_LINE: usize = 8 * TREE_FANOUT;

/// An announced range. Slots are reused, words never change their place.
pub(super) struct Region {
    /// First frame of the first section.
    base: settled::AtomicU64,
    /// Frames from `base` to the end of the announced range; 0: no region here.
    frames: settled::AtomicU64,
    /// Frames between `base` and the start of the announced range.
    skip: settled::AtomicU64,
    /// Never to be removed: boot memory. Metadata that must not hinder removal lives here.
    fixed: settled::AtomicU64,
    /// The NUMA node that its memory belongs to.
    node: settled::AtomicU64,
    /// Sections that the words were made for.
    capacity: AtomicUsize,
    sections: AtomicPtr<Section>,
    counters: AtomicPtr<Counter>,
    trees: AtomicPtr<AtomicU64>,
}

impl Region {
    pub(super) const fn unused() -> Region {
        Region {
            base: settled::AtomicU64::new(0),
            frames: settled::AtomicU64::new(0),
            skip: settled::AtomicU64::new(0),
            fixed: settled::AtomicU64::new(0),
            node: settled::AtomicU64::new(0),
            capacity: AtomicUsize::new(0),
            sections: AtomicPtr::new(core::ptr::null_mut()),
            counters: AtomicPtr::new(core::ptr::null_mut()),
            trees: AtomicPtr::new(core::ptr::null_mut()),
        }
    }

    /// Gives an unused slot its words.
    ///
    /// # Safety
    /// `memory` is aligned to 64 bytes, holds `layout.bytes()` zero bytes and belongs to this
    /// region for as long as the region exists. The slot has no words yet, and nobody else
    /// installs any.
    #[cfg(not(loom))]
    pub(super) unsafe fn install(&self, layout: Layout, memory: *mut u8) {
        // SAFETY: the offsets lie within `layout.bytes()`.
        unsafe {
            self.sections.store(memory.cast(), Ordering::Relaxed);
            self.counters.store(memory.add(layout.counters_at()).cast(), Ordering::Relaxed);
            self.trees.store(memory.add(layout.trees_at()).cast(), Ordering::Relaxed);
        }
        self.capacity.store(layout.sections, Ordering::Release);
    }

    /// Under loom, whose atomics are no plain memory, the model keeps the words.
    #[cfg(loom)]
    pub(super) fn install_model(&self, words: &mut ModelWords) {
        self.sections.store(words.sections.as_mut_ptr(), Ordering::Relaxed);
        self.counters.store(words.counters.as_mut_ptr(), Ordering::Relaxed);
        self.trees.store(words.trees.as_mut_ptr(), Ordering::Relaxed);
        self.capacity.store(words.sections.len(), Ordering::Release);
    }

    /// Whether the slot's words are large enough for `layout`.
    pub(super) fn holds(&self, layout: Layout) -> bool {
        self.capacity.load(Ordering::Acquire) >= layout.sections
    }

    /// Sections that the slot's words were made for; 0: it has none.
    pub(super) fn capacity(&self) -> usize {
        self.capacity.load(Ordering::Acquire)
    }

    /// Where the slot's words start, and how they lie there, once it has any.
    #[cfg(not(loom))]
    pub(super) fn words(&self) -> Option<(*mut u8, Layout)> {
        let sections = self.capacity();
        let start = self.sections.load(Ordering::Relaxed).cast();
        (sections != 0).then_some((start, Layout { sections }))
    }

    /// Announces `range` here. Release: whoever sees the length sees the words.
    pub(super) fn announce(&self, range: PfnRange, node: NodeId, fixed: bool) {
        let base = range.start().align_down(SECTION_FRAMES as u64);
        self.base.store(base.number(), Ordering::Relaxed);
        self.skip.store(range.start().number() - base.number(), Ordering::Relaxed);
        self.fixed.store(u64::from(fixed), Ordering::Relaxed);
        self.node.store(node.number() as u64, Ordering::Relaxed);
        self.frames.store(range.end().number() - base.number(), Ordering::Release);
    }

    /// Keeps only a part of the announcement; the words stay, also those of the rest.
    pub(super) fn trim(&self, keep: PfnRange) {
        let base = self.base.load(Ordering::Relaxed);
        self.skip.store(keep.start().number() - base, Ordering::Relaxed);
        // Release, as in `announce`; whoever sees one without the other finds absent memory.
        self.frames.store(keep.end().number() - base, Ordering::Release);
    }

    /// Takes the announcement back; the words stay.
    pub(super) fn withdraw(&self) {
        self.frames.store(0, Ordering::Release);
    }

    /// The announced range, or `None` for an unused slot.
    pub(super) fn range(&self) -> Option<PfnRange> {
        // Acquire pairs with `announce`.
        let frames = self.frames.load(Ordering::Acquire);
        let base = Pfn::new(self.base.load(Ordering::Relaxed))?;
        let skip = self.skip.load(Ordering::Relaxed);
        if frames == 0 {
            return None;
        }
        PfnRange::new(base.checked_add(skip)?, base.checked_add(frames)?)
    }

    /// Whether this is memory that is never removed.
    pub(super) fn is_fixed(&self) -> bool {
        self.fixed.load(Ordering::Relaxed) != 0
    }

    /// The node that its memory belongs to.
    pub(super) fn node(&self) -> NodeId {
        let node = self.node.load(Ordering::Relaxed);
        usize::try_from(node).ok().and_then(NodeId::new).known().unwrap_or(NodeId::ZERO)
    }

    /// The frame's distance from the region's base, if the region has it.
    #[inline]
    pub(super) fn offset_of(&self, pfn: Pfn) -> Option<usize> {
        // Acquire pairs with `announce`.
        let frames = self.frames.load(Ordering::Acquire);
        let offset = pfn.number().wrapping_sub(self.base.load(Ordering::Relaxed));
        // The rest of the first section may belong to another region.
        let announced = offset < frames && offset >= self.skip.load(Ordering::Relaxed);
        if announced { usize::try_from(offset).ok() } else { None }
    }

    /// The frame at this distance from the region's base.
    #[inline]
    pub(super) fn pfn_at(&self, offset: usize) -> Pfn {
        let base = self.base.load(Ordering::Relaxed);
        // An old hint may name a place that the region in its slot now does not have.
        Pfn::new(base + offset as u64).unwrap_or(Pfn::LIMIT)
    }

    /// How many sections the region spans now.
    pub(super) fn section_count(&self) -> usize {
        let frames = self.frames.load(Ordering::Acquire);
        usize::try_from(frames.div_ceil(SECTION_FRAMES as u64)).known().unwrap_or(0)
    }

    /// Sections that one CPU should have for itself: their counters share no cache lines with those
    /// of others, and nor do the leaves of their trees where the region is large enough for that.
    pub(super) fn neighbourhood(&self) -> usize {
        (self.section_count() / 16).clamp(COUNTER_GROUP, LEAVES_IN_LINE.max(COUNTER_GROUP))
    }

    /// The words of a section. Stays good for a withdrawn region.
    #[inline]
    pub(super) fn section(&self, index: usize) -> Option<&Section> {
        // Acquire pairs with `install`: a capacity means that the pointers are there.
        if index >= self.capacity.load(Ordering::Acquire) {
            return None;
        }
        // SAFETY: `install` was given this many sections at this pointer, for good.
        Some(unsafe { &*self.sections.load(Ordering::Relaxed).add(index) })
    }

    /// The words of section `index` and the counter of pageblock `bit` in it.
    #[inline]
    pub(super) fn block(&self, index: usize, bit: usize) -> Option<(&Section, &Counter)> {
        let section = self.section(index)?;
        if bit >= SECTION_PAGEBLOCKS {
            return None;
        }
        let at = Layout::counter_at(index, bit);
        // SAFETY: the section exists, so `at` is below the number of counters, which is rounded up
        // to whole groups.
        Some((section, unsafe { &*self.counters.load(Ordering::Relaxed).add(at) }))
    }

    /// The tree of a class.
    #[inline]
    pub(super) fn tree(&self, class: Class) -> Tree<'_> {
        let capacity = self.capacity.load(Ordering::Acquire);
        if capacity == 0 {
            return Tree::new(&[], 0);
        }
        let words = words_needed(capacity);
        // SAFETY: `install` was given `Class::COUNT` trees of this many words at this pointer.
        let words = unsafe {
            let first = self.trees.load(Ordering::Relaxed).add(class.index() * words);
            core::slice::from_raw_parts(first, words)
        };
        Tree::new(words, capacity)
    }

    /// The number of the first section that has an announced frame.
    pub(super) fn first_section(&self) -> usize {
        let skip = self.skip.load(Ordering::Relaxed) / SECTION_FRAMES as u64;
        usize::try_from(skip).known().unwrap_or(0)
    }

    /// The number of the first announced frame.
    #[inline]
    pub(super) fn begin(&self) -> u64 {
        self.base.load(Ordering::Relaxed) + self.skip.load(Ordering::Relaxed)
    }

    /// The number of the frame above the last announced one; 0 if nothing is announced.
    #[inline]
    pub(super) fn end(&self) -> u64 {
        // Acquire pairs with `announce`.
        match self.frames.load(Ordering::Acquire) {
            0 => 0,
            frames => self.base.load(Ordering::Relaxed) + frames,
        }
    }

    /// The number of the last section whose announced part begins below `below`, which lies above
    /// [`begin`](Self::begin).
    pub(super) fn last_section_below(&self, below: u64) -> usize {
        let offset = below.min(self.end()).saturating_sub(self.base.load(Ordering::Relaxed) + 1);
        usize::try_from(offset / SECTION_FRAMES as u64).known().unwrap_or(0)
    }

    /// The number of the first section whose announced part begins at or above the frame of this
    /// number.
    pub(super) fn first_section_from(&self, from: u64) -> usize {
        let offset = from.saturating_sub(self.base.load(Ordering::Relaxed));
        if offset <= self.skip.load(Ordering::Relaxed) {
            return self.first_section();
        }
        usize::try_from(offset.div_ceil(SECTION_FRAMES as u64)).known().unwrap_or(usize::MAX)
    }

    /// The pageblocks of section `index` that have a frame in `range`.
    pub(super) fn mask_of(&self, index: usize, range: PfnRange) -> u64 {
        let section =
            PfnRange::with_len(self.pfn_at(index * SECTION_FRAMES), SECTION_FRAMES as u64);
        let Some(section) = section else { return 0 };
        let part = section.intersection(range);
        if part.is_empty() {
            return 0;
        }
        let first = (part.start().number() - section.start().number()) / PAGEBLOCK_FRAMES as u64;
        let end =
            (part.end().number() - section.start().number()).div_ceil(PAGEBLOCK_FRAMES as u64);
        let below = |bit: u64| if bit >= 64 { u64::MAX } else { (1u64 << bit) - 1 };
        below(end) & !below(first) & SECTION_MASK
    }
}
