//! Announced ranges: which there are, and which words they get.

use super::layout::Layout;
#[cfg(loom)]
use super::layout::ModelWords;
use super::{MAX_REGIONS, NodeId, SectionRef, Words};
use crate::addr::{Bytes, PfnRange};
use crate::geometry::FRAME_SIZE;
#[cfg(not(loom))]
use crate::platform::DirectMap;
use crate::sync::Ordering;

/// Names an announced range until it is withdrawn; then the next one may get it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub(crate) struct RegionIndex(usize);

impl RegionIndex {
    /// Its number, below [`MAX_REGIONS`].
    pub(crate) fn number(self) -> usize {
        self.0
    }

    /// The one with this number.
    pub(crate) fn new(number: usize) -> Option<RegionIndex> {
        (number < MAX_REGIONS).then_some(RegionIndex(number))
    }
}

/// An announced range.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Announced {
    pub(crate) index: RegionIndex,
    pub(crate) range: PfnRange,
    pub(crate) node: NodeId,
    /// Boot memory, which is never removed.
    pub(crate) fixed: bool,
}

/// Where the words of a new range can be.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Vacancy {
    /// A withdrawn range has left words that are large enough.
    Ready(RegionIndex),
    /// There must be memory for them first: see [`Words::install`].
    NeedsMemory(RegionIndex),
}

impl Words {
    /// The announced ranges. A snapshot.
    pub(crate) fn announced(&self) -> impl Iterator<Item = Announced> {
        (0..self.regions().len()).filter_map(|slot| self.announced_as(RegionIndex(slot)))
    }

    /// The range that is announced under `index`.
    pub(crate) fn announced_as(&self, index: RegionIndex) -> Option<Announced> {
        let region = self.regions().get(index.0)?;
        let (node, fixed) = (region.node(), region.is_fixed());
        Some(Announced { index, range: region.range()?, node, fixed })
    }

    /// The announced range that has a frame.
    pub(crate) fn announced_at(&self, pfn: crate::addr::Pfn) -> Option<Announced> {
        let (slot, _) = self.find(pfn)?;
        self.announced_as(RegionIndex(slot))
    }

    /// Whether one announced range has all of `range`.
    pub(crate) fn covers(&self, range: PfnRange) -> bool {
        self.regions().iter().any(|region| region.range().is_some_and(|all| all.covers(range)))
    }

    /// An announced range that has a part of `range`.
    pub(crate) fn overlapping(&self, range: PfnRange) -> Option<PfnRange> {
        let mut announced = self.regions().iter().filter_map(super::region::Region::range);
        announced.find(|other| other.overlaps(range))
    }

    /// All sections that have an announced frame.
    pub(crate) fn sections(&self) -> impl Iterator<Item = SectionRef<'_>> {
        self.announced().flat_map(|announced| self.sections_of(announced.index))
    }

    /// The sections of the range that is announced under `index`, lowest first.
    fn sections_of(&self, index: RegionIndex) -> impl Iterator<Item = SectionRef<'_>> {
        let sections = self.regions().get(index.0).map_or(0, super::region::Region::section_count);
        (0..sections).filter_map(move |section| self.section_in(index.0, section))
    }

    /// Bytes that the words of a range take.
    #[cfg(not(loom))]
    pub(crate) fn bytes_for(range: PfnRange) -> Bytes {
        Bytes(Layout::for_range(range).bytes() as u64)
    }

    /// Memory that the words of what is announced now take.
    pub(crate) fn reserved(&self) -> Bytes {
        let bytes = self.announced().map(|announced| {
            #[cfg(not(loom))]
            let bytes = Words::bytes_for(announced.range).0;
            #[cfg(loom)]
            let bytes = announced.range.frames();
            bytes.next_multiple_of(FRAME_SIZE)
        });
        Bytes(bytes.sum())
    }

    /// The frames that hold the words of each range that was ever announced, and the range; an
    /// empty one if it was withdrawn.
    #[cfg(not(loom))]
    pub(crate) fn memory(
        &self,
        direct_map: DirectMap,
    ) -> impl Iterator<Item = (PfnRange, PfnRange)> {
        self.regions().iter().filter_map(move |region| {
            let (start, layout) = region.words()?;
            let frames = (layout.bytes() as u64).div_ceil(FRAME_SIZE);
            let frames = PfnRange::with_len(direct_map.frame_at(start)?, frames)?;
            Some((frames, region.range().unwrap_or(PfnRange::EMPTY)))
        })
    }

    /// Where the words of `range` can be. `None`: all [`MAX_REGIONS`] are in use, or have words
    /// that are too small.
    pub(crate) fn vacancy(&self, range: PfnRange) -> Option<Vacancy> {
        let layout = Layout::for_range(range);
        let unused = |slot: &usize| self.regions[*slot].range().is_none();
        let slots = || (0..MAX_REGIONS).filter(unused);
        let fitting = slots().filter(|&slot| self.regions[slot].holds(layout));
        if let Some(slot) = fitting.min_by_key(|&slot| self.regions[slot].capacity()) {
            return Some(Vacancy::Ready(RegionIndex(slot)));
        }
        let slot = slots().find(|&slot| self.regions[slot].capacity() == 0)?;
        Some(Vacancy::NeedsMemory(RegionIndex(slot)))
    }

    /// Gives `index` words for `range` in `memory`, which it zeroes.
    ///
    /// # Safety
    /// `memory` is mapped, aligned to 64 bytes, holds [`bytes_for`](Self::bytes_for) `range`, and
    /// belongs to the words for good. `index` has no words yet, and nobody else installs any.
    #[cfg(not(loom))]
    pub(crate) unsafe fn install(&self, index: RegionIndex, range: PfnRange, memory: *mut u8) {
        let layout = Layout::for_range(range);
        // SAFETY: the caller promises it.
        unsafe {
            memory.write_bytes(0, layout.bytes());
            self.regions[index.0].install(layout, memory);
        }
    }

    /// Under loom, whose atomics are no plain memory, the model keeps the words.
    #[cfg(loom)]
    pub(crate) fn install_model(&self, index: RegionIndex, words: &mut ModelWords) {
        self.regions[index.0].install_model(words);
    }

    /// Announces `range` under `index`, which has words for it.
    pub(crate) fn announce(&self, index: RegionIndex, range: PfnRange, node: NodeId, fixed: bool) {
        self.regions[index.0].announce(range, node, fixed);
        self.nodes.fetch_or(1 << node.number(), Ordering::Relaxed);
        // Release: whoever looks at the slot sees its words.
        self.slots_used.fetch_max(index.0 + 1, Ordering::Release);
    }

    /// Keeps only a part of an announced range.
    pub(crate) fn trim(&self, index: RegionIndex, keep: PfnRange) {
        self.regions[index.0].trim(keep);
    }

    /// Takes an announcement back.
    pub(crate) fn withdraw(&self, index: RegionIndex) {
        self.regions[index.0].withdraw();
    }
}
