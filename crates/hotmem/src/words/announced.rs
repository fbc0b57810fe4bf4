//! Lists the announced ranges, and makes the words of their sections.

#[cfg(loom)]
use super::directory::Chunk;
use super::directory::{
    CHUNK_SECTIONS, Entry, Neighbour, NoMemory, PieceSupply, RegionIndex, SectionId,
};
#[cfg(not(loom))]
use super::directory::{NeededRuns, PieceCount};
use super::{NodeId, NodeIndex, SectionWords};
use crate::addr::{Pfn, PfnRange};
use crate::geometry::SECTION_FRAMES;
use crate::outlined::Outlined;
#[cfg(not(loom))]
use crate::words::DirectMap;

/// An announced range.
#[derive(Clone, Copy)]
pub(crate) struct Announced<'a> {
    pub(crate) index: RegionIndex,
    pub(crate) range: PfnRange,
    /// The node that the memory gets if it is added without naming a node.
    pub(crate) node: NodeId,
    /// Whether the range is boot memory, which is never removed.
    pub(crate) is_boot: bool,
    /// The record of the range, which the control path keeps.
    pub(crate) entry: &'a Entry,
}

impl<'a> Announced<'a> {
    fn new((index, entry, range): (RegionIndex, &'a Entry, PfnRange)) -> Announced<'a> {
        let node = NodeId(entry.node());
        Announced { index, range, node, is_boot: entry.is_boot(), entry }
    }
}

impl SectionWords {
    /// Iterates over the announced ranges. A range that is announced or withdrawn meanwhile may or
    /// may not be among them.
    pub(crate) fn announced(&self) -> impl Iterator<Item = Announced<'_>> {
        self.ranges.iter().map(Announced::new)
    }

    /// Returns the range that is announced under `index`.
    pub(crate) fn region_at_index(&self, index: RegionIndex) -> Option<Announced<'_>> {
        let entry = self.ranges.get(index)?;
        Some(Announced::new((index, entry, entry.range()?)))
    }

    /// Returns the announced range that contains a frame. Cost: O(1) if the last call found the same
    /// range, otherwise a load for each 63 ranges and O(ranges near the frame).
    pub(crate) fn announced_at(&self, pfn: Pfn) -> Option<Announced<'_>> {
        self.ranges.containing(pfn).map(Announced::new)
    }

    /// Iterates over the ranges of boot memory, which is never removed.
    pub(super) fn boot_ranges(&self) -> impl Iterator<Item = PfnRange> {
        Outlined(
            self.announced().filter(|announced| announced.is_boot).map(|announced| announced.range),
        )
    }

    /// Returns whether one announced range contains all of `range`.
    #[inline(never)]
    pub(crate) fn covers(&self, range: PfnRange) -> bool {
        self.ranges.containing(range.start()).is_some_and(|(_, _, all)| all.covers(range))
    }

    /// Returns an announced range that overlaps `range`.
    pub(crate) fn overlapping(&self, range: PfnRange) -> Option<PfnRange> {
        self.ranges.overlapping(range)
    }

    /// Returns a range that is announced and overlaps `range`. If there is none, returns the first part
    /// of `around` that is announced for another node than `node`, in a region whose nodes do not
    /// vary. `around` covers `range`.
    pub(crate) fn neighbour(
        &self,
        range: PfnRange,
        around: PfnRange,
        node: NodeId,
    ) -> Option<Neighbour> {
        self.ranges.neighbour(range, around, node.0)
    }

    /// Returns how much memory the missing words of these ranges will take. The ranges must be in
    /// ascending order.
    #[cfg(not(loom))]
    pub(crate) fn runs_for_words(
        &self,
        ranges: &mut dyn Iterator<Item = (PfnRange, NodeIndex)>,
    ) -> NeededRuns {
        let mut count = PieceCount::new(&self.directory);
        for (range, node) in ranges {
            chunks_of(range).for_each(|id| count.add(id, node));
        }
        count.needed()
    }

    /// Returns how much more memory the list of ranges will take if this many ranges are added.
    #[cfg(not(loom))]
    pub(crate) fn runs_for_list(&self, ranges: usize) -> NeededRuns {
        let mut needed = NeededRuns::default();
        needed.add_single(self.ranges.frames_for(ranges));
        needed
    }

    /// Makes the missing words of the sections of `range`, and the missing pieces that these
    /// sections need to belong to `node`. If this fails half-way, the pieces that were made stay.
    ///
    /// Cost: O(sections).
    #[cfg(not(loom))]
    pub(crate) fn make_words(
        &self,
        range: PfnRange,
        node: NodeIndex,
        supply: &mut impl PieceSupply,
    ) -> Result<(), NoMemory> {
        chunks_of(range).try_for_each(|id| self.directory.install(id, node, supply))
    }

    /// Moves the sections of `range` to `node`. The sections have words, and
    /// [`make_words`](Self::make_words) has made the pieces that they need to belong to the node.
    /// No memory of a section whose node changes is present.
    pub(crate) fn set_node(&self, range: PfnRange, node: NodeIndex) {
        for section in
            range.chunks(SECTION_FRAMES as u64).filter_map(|part| SectionId::of(part.start()))
        {
            self.directory.set_node(section, node);
        }
    }

    /// Adds `range` to the list of announced ranges. The memory gets `node` if it is added without
    /// naming a node.
    pub(crate) fn announce(
        &self,
        range: PfnRange,
        node: NodeId,
        is_boot: bool,
        supply: &mut impl PieceSupply,
    ) -> Result<RegionIndex, NoMemory> {
        self.ranges.insert(range, node.0, is_boot, supply)
    }

    /// Removes a range from the list of announced ranges.
    pub(crate) fn withdraw(&self, index: RegionIndex) {
        self.ranges.withdraw(index);
    }

    /// Announces memory of a model, and makes its chunks by `make`. The chunks have words only for
    /// the sections of `range`.
    #[cfg(loom)]
    pub(crate) fn announce_model<S: PieceSupply>(
        &self,
        range: PfnRange,
        is_boot: bool,
        supply: &mut S,
        make: impl Fn(&mut S, Chunk) -> core::ptr::NonNull<Chunk>,
    ) {
        let mut nodes = self.assign_indices();
        let node = nodes.assign(NodeId::ZERO).expect("the first");
        nodes.commit();
        for part in range.chunks((CHUNK_SECTIONS * SECTION_FRAMES) as u64) {
            let chunk =
                make(supply, Chunk::with_sections(part.chunks(SECTION_FRAMES as u64).count()));
            let first = SectionId::of(part.start()).expect("memory of the model");
            self.directory.install_chunk(first, node, chunk, supply).expect("boxes");
            // A model may move its memory to another node.
            let second = NodeIndex::new(1).expect("two nodes");
            self.directory.install(first, second, supply).expect("boxes");
        }
        self.announce(range, NodeId::ZERO, is_boot, supply).expect("boxes");
        self.set_node(range, node);
        self.directory.end_installs();
    }

    /// Moves a model's memory, which is absent, to another node.
    #[cfg(loom)]
    pub(crate) fn move_model(&self, range: PfnRange, node: NodeId) {
        let mut nodes = self.assign_indices();
        let node = nodes.assign(node).expect("two nodes");
        nodes.commit();
        self.set_node(range, node);
    }

    /// Iterates over the pieces of the directory and of the list of ranges. Yields the frames that
    /// hold a piece, and the frames that the piece describes.
    #[cfg(not(loom))]
    pub(crate) fn frames_of_pieces(
        &self,
        direct_map: DirectMap,
    ) -> impl Iterator<Item = (PfnRange, PfnRange)> {
        let pieces = self.directory.walk().chain(self.ranges.walk());
        pieces.filter_map(move |piece| {
            let start = direct_map.frame_at(piece.memory.cast_mut())?;
            Some((PfnRange::with_len(start, piece.frames)?, piece.describes))
        })
    }
}

/// Returns one section for each chunk that overlaps `range`, the lowest first.
#[cfg(not(loom))]
fn chunks_of(range: PfnRange) -> impl Iterator<Item = SectionId> {
    let chunk = (CHUNK_SECTIONS * SECTION_FRAMES) as u64;
    range.chunks(chunk).filter_map(|part| SectionId::of(part.start()))
}
