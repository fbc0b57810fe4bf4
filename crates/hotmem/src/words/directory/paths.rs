//! Finds the sections of a node and class, by ascending or descending number.
//!
//! The lowest level has a word for each class and chunk, with a bit for each section; all nodes
//! share it. Above the lowest level, each node has its own tree: its part of a leaf has a bit for
//! each chunk, and its record has a bit for each leaf. At the top, the directory has a bit for each
//! node. The bit of a chunk in the tree of node n summarises the bits of those sections of the
//! chunk that belong to node n.
//!
//! The bits are **hints**. A set bit may be stale: it may lead to nothing. A clear bit is correct,
//! except while an operation is in flight. Two rules keep this true:
//! - A setter is a CPU that has just made a section nonempty. It passes a SeqCst fence, reads the
//!   section's node, and then makes sure that the bits above the section are set, always up to the
//!   top. It loads each bit, and writes only if the bit is clear. It does not stop at a set bit,
//!   because the CPU that set this bit may not have set the bits above yet, or the bit may be a
//!   stale one of the section's previous node.
//! - Only a searcher that found everything below a bit empty clears the bit. (An exception is
//!   `SectionRef::hide`, whose caller makes the section findable in another way.) The searcher then
//!   passes a SeqCst fence and reads everything below the bit again. If it is no longer empty, the
//!   searcher sets the bit again, and the bits above it up to the top. A searcher clears a bit of
//!   the lowest level only if the section itself is empty, never because the section belongs to
//!   another node.
//!
//! The two fences pair with each other: if a setter and a searcher act at the same time, at least
//! one of them sees what the other did.

use super::level::{clear_bit, first_set, is_zero, last_of_all, last_set, set_bit};
use super::pieces::ChunkHeader;
use super::sizes::{CHUNK_SECTIONS, LEAF_CHUNKS, NODE_INDEX_BITS, ROOT_LEAVES};
use super::{Directory, NodeIndex, SectionId};
use crate::addr::Pfn;
use crate::geometry::mask;
use crate::invariant::OrRecordViolation;
use crate::sync::{AtomicU64, Ordering, fence, mutant};
use crate::words::{Class, ReadCount};

/// The number of words that [`set_path`](Directory::set_path) reads.
pub(crate) const PATH_LEN: u64 = if ROOT_LEAVES > 1 { 4 } else { 3 };

/// The sections of a node that the tree of one class leads to.
#[derive(Clone, Copy)]
pub(crate) struct Paths<'a> {
    directory: &'a Directory,
    node: NodeIndex,
    class: Class,
    /// Whether a search clears stale bits.
    clears_stale_bits: bool,
    /// A search by ascending number ends at this chunk.
    end_chunk: usize,
}

impl Directory {
    /// Makes sure that searches for `class` find a section. The caller must have just made the
    /// section nonempty.
    pub(crate) fn set_path(&self, class: Class, id: SectionId) {
        fence(Ordering::SeqCst); // pairs with the fences in `clear_bit` and `clear_section_bit`
        let Some(header) = self.chunk_header(id.chunk()).or_record_violation() else { return };
        let tree = core::slice::from_ref(&header.tree[class.index()]);
        mutant!("a path stops at a set bit" => if !set_bit(tree, id.index_in_chunk()) { return });
        set_bit(tree, id.index_in_chunk());
        self.set_above(class, header.node(id.index_in_chunk()), id.chunk());
    }

    fn set_above(&self, class: Class, node: NodeIndex, chunk: usize) {
        // The part exists: the control path makes the pieces of a node before a section belongs to
        // the node.
        let (leaf, chunk_in_leaf) = (chunk / LEAF_CHUNKS, chunk % LEAF_CHUNKS);
        if let Some(part) = self.part(node, leaf).or_record_violation() {
            set_bit(part.words(class), chunk_in_leaf);
        }
        self.set_leaf(class, node, leaf);
    }

    fn set_leaf(&self, class: Class, node: NodeIndex, leaf: usize) {
        if ROOT_LEAVES > 1
            && let Some(record) = self.record(node).or_record_violation()
        {
            set_bit(record.top(class), leaf);
        }
        set_bit(&self.node_bits[class.index()], node.number());
    }

    /// Clears the bit of a section that a searcher found empty. If the section has pageblocks of the
    /// class after that, sets the bit again, and the bits above it.
    pub(crate) fn hide_if_empty(&self, class: Class, id: SectionId) {
        self.clear_section_bit(class, id);
        if self.section(id).is_some_and(|section| section.available(class) != 0) {
            self.set_path(class, id);
        }
    }

    /// Clears the bit of a section, even if the section is not empty. Returns whether the bit was
    /// set.
    pub(crate) fn clear_section_bit(&self, class: Class, id: SectionId) -> bool {
        let Some(header) = self.chunk_header(id.chunk()).or_record_violation() else {
            return false;
        };
        let tree = &header.tree[class.index()];
        mutant!("hiding a section hides all sections of its chunk" => {
            tree.store(0, Ordering::SeqCst);
        });
        let bit = 1 << id.index_in_chunk();
        let before = tree.fetch_and(!bit, Ordering::AcqRel);
        fence(Ordering::SeqCst); // pairs with the fence in `set_path`
        before & bit != 0
    }

    /// Returns whether the bits that lead to a section are set at all levels.
    pub(crate) fn leads_to(&self, class: Class, id: SectionId) -> bool {
        let Some(header) = self.chunk_header(id.chunk()) else { return false };
        let is_set = |words: &[AtomicU64], bit: usize| {
            words.get(bit / 64).is_some_and(|w| w.load(Ordering::Relaxed) >> (bit % 64) & 1 != 0)
        };
        let node = header.node(id.index_in_chunk());
        let (leaf, chunk_in_leaf) = (id.chunk() / LEAF_CHUNKS, id.chunk() % LEAF_CHUNKS);
        is_set(core::slice::from_ref(&header.tree[class.index()]), id.index_in_chunk())
            && self.part(node, leaf).is_some_and(|part| is_set(part.words(class), chunk_in_leaf))
            && (ROOT_LEAVES == 1
                || self.record(node).is_some_and(|record| is_set(record.top(class), leaf)))
            && is_set(&self.node_bits[class.index()], node.number())
    }

    /// Returns whether the bits of all nodes are clear for a class. Cost: a load for each 64 nodes
    /// that a machine can have.
    pub(crate) fn looks_empty(&self, class: Class) -> bool {
        self.node_bits[class.index()].iter().all(|word| word.load(Ordering::Acquire) == 0)
    }

    /// Returns whether the bit of one node is clear for a class.
    pub(crate) fn node_looks_empty(&self, class: Class, node: NodeIndex) -> bool {
        let n = node.number();
        self.node_bits[class.index()][n / 64].load(Ordering::Acquire) >> (n % 64) & 1 == 0
    }

    /// Returns the paths of a class to sections of a node.
    pub(crate) fn paths(&self, node: NodeIndex, class: Class) -> Paths<'_> {
        Paths { directory: self, node, class, clears_stale_bits: true, end_chunk: usize::MAX }
    }

    /// Returns the sections of a chunk that belong to a node, as a mask.
    fn sections_of(&self, header: &ChunkHeader, node: NodeIndex) -> u64 {
        let n = node.number();
        // Relaxed: see `set_node`.
        #[allow(clippy::cast_possible_truncation, reason = "at most 8")]
        let used_bits = self.max_index_bits.load(Ordering::Relaxed) as usize;
        let bits_of_node = (usize::BITS - n.leading_zeros()) as usize;
        let bits = used_bits.max(bits_of_node).min(NODE_INDEX_BITS);
        let by_index_bit = header.sections_by_index_bit[..bits].iter().enumerate();
        by_index_bit.fold(mask(CHUNK_SECTIONS), |sections, (bit, with_bit)| {
            let with_bit = with_bit.load(Ordering::Relaxed);
            sections & if n >> bit & 1 == 0 { !with_bit } else { with_bit }
        })
    }
}

impl<'a> Paths<'a> {
    /// Returns the same paths for code that only looks. A search over these paths clears no bit, so
    /// that it never hides a section from the searches of the allocator, not even for a moment.
    pub(crate) fn read_only(self) -> Paths<'a> {
        mutant!("a read-only search clears bits" => return self);
        Paths { clears_stale_bits: false, ..self }
    }

    /// Returns the same paths for a search by ascending number that ends at the chunk of `end`, or
    /// at the chunk after it. So it does not clear the stale bits that lie above.
    pub(crate) fn below(self, end: Pfn) -> Paths<'a> {
        let end_chunk = SectionId::of(end).map_or(usize::MAX, |id| id.chunk() + 1);
        Paths { end_chunk, ..self }
    }

    /// Returns the first section at or above `from` that the paths lead to. Cost: a few loads for
    /// each level.
    #[cfg(test)]
    pub(crate) fn next(&self, from: SectionId) -> Option<SectionId> {
        self.next_counting_reads(from, &mut ReadCount::default())
    }

    /// Returns the first section at or above `from` that the paths lead to. Adds the number of
    /// words that it reads to `words_read`.
    #[inline]
    pub(crate) fn next_counting_reads(
        &self,
        from: SectionId,
        words_read: &mut ReadCount,
    ) -> Option<SectionId> {
        let mut chunk = from.chunk();
        let mut search_mask = !mask(from.index_in_chunk());
        loop {
            words_read.add(1);
            let set_bits = self.in_chunk(chunk) & search_mask;
            if set_bits != 0 {
                return Some(SectionId::from_chunk(chunk, set_bits.trailing_zeros() as usize));
            }
            if search_mask == u64::MAX && self.clears_stale_bits {
                self.hide_chunk(chunk);
            }
            search_mask = u64::MAX;
            chunk = self.next_chunk(chunk + 1, words_read)?;
            if chunk >= self.end_chunk {
                return None;
            }
        }
    }

    /// Returns the last section at or below `from` that the paths lead to. Adds the number of words
    /// that it reads to `words_read`.
    pub(crate) fn prev_counting_reads(
        &self,
        from: SectionId,
        words_read: &mut ReadCount,
    ) -> Option<SectionId> {
        let mut chunk = from.chunk();
        let mut search_mask = mask(from.index_in_chunk() + 1);
        loop {
            words_read.add(1);
            let set_bits = self.in_chunk(chunk) & search_mask;
            if let Some(last) = set_bits.checked_ilog2() {
                return Some(SectionId::from_chunk(chunk, last as usize));
            }
            if search_mask == u64::MAX && self.clears_stale_bits {
                self.hide_chunk(chunk);
            }
            search_mask = u64::MAX;
            chunk = self.prev_chunk(chunk, words_read)?;
        }
    }

    /// Returns the sections of a chunk that belong to the node and have a set bit, as a mask.
    #[inline(never)]
    fn in_chunk(&self, chunk: usize) -> u64 {
        self.directory.chunk_header(chunk).map_or(0, |header| {
            // Acquire pairs with the Release in `set_bit`.
            let tree = header.tree[self.class.index()].load(Ordering::Acquire);
            if tree == 0 { 0 } else { tree & self.directory.sections_of(header, self.node) }
        })
    }

    /// Returns the first chunk at or above `from` whose bit is set in the node's tree.
    fn next_chunk(&self, from: usize, words_read: &mut ReadCount) -> Option<usize> {
        if self.directory.node_looks_empty(self.class, self.node) {
            return None;
        }
        let (mut leaf, mut first) = (from / LEAF_CHUNKS, from % LEAF_CHUNKS);
        loop {
            if leaf >= ROOT_LEAVES {
                return None;
            }
            if let Some(part) = self.directory.part(self.node, leaf)
                && let Some(chunk_in_leaf) = first_set(part.words(self.class), first, words_read)
            {
                return Some(leaf * LEAF_CHUNKS + chunk_in_leaf);
            }
            if first == 0 && self.clears_stale_bits {
                self.hide_leaf(leaf);
            }
            first = 0;
            let next = if ROOT_LEAVES > 1 {
                let record = self.directory.record(self.node);
                record.and_then(|r| first_set(r.top(self.class), leaf + 1, words_read))
            } else {
                None
            };
            let Some(next) = next else {
                self.hide_node();
                return None;
            };
            leaf = next;
        }
    }

    /// Returns the last chunk below `below` whose bit is set in the node's tree.
    fn prev_chunk(&self, below: usize, words_read: &mut ReadCount) -> Option<usize> {
        if self.directory.node_looks_empty(self.class, self.node) {
            return None;
        }
        let (mut leaf, mut end) = (below / LEAF_CHUNKS, below % LEAF_CHUNKS);
        loop {
            if end != 0
                && let Some(part) = self.directory.part(self.node, leaf)
                && let Some(chunk_in_leaf) = last_of_all(part.words(self.class), end, words_read)
            {
                return Some(leaf * LEAF_CHUNKS + chunk_in_leaf);
            }
            if end == LEAF_CHUNKS && self.clears_stale_bits {
                self.hide_leaf(leaf);
            }
            end = LEAF_CHUNKS;
            let next = if ROOT_LEAVES > 1 {
                let record = self.directory.record(self.node);
                record.and_then(|r| last_set(r.top(self.class), leaf, words_read))
            } else {
                None
            };
            let Some(next) = next else {
                self.hide_node();
                return None;
            };
            leaf = next;
        }
    }

    /// Clears the node's bit of a chunk in which a searcher found no section of the node. If the
    /// chunk has one after that, sets the bit again.
    fn hide_chunk(&self, chunk: usize) {
        let (leaf, chunk_in_leaf) = (chunk / LEAF_CHUNKS, chunk % LEAF_CHUNKS);
        let Some(part) = self.directory.part(self.node, leaf) else { return };
        clear_bit(part.words(self.class), chunk_in_leaf, || {
            // This reads all again that the bit summarises: the chunk's word and the nodes of its
            // sections.
            if self.in_chunk(chunk) == 0 {
                return;
            }
            mutant!("a bit that is set again sets no bit above it" => {
                set_bit(part.words(self.class), chunk_in_leaf);
                return;
            });
            self.directory.set_above(self.class, self.node, chunk);
        });
    }

    /// Clears the node's bit of a leaf in which the node has no bit of a chunk. If it has one after
    /// that, sets the bit again.
    fn hide_leaf(&self, leaf: usize) {
        if ROOT_LEAVES > 1
            && let Some(record) = self.directory.record(self.node)
        {
            clear_bit(record.top(self.class), leaf, || {
                let part = self.directory.part(self.node, leaf);
                if part.is_some_and(|part| !is_zero(part.words(self.class))) {
                    self.directory.set_leaf(self.class, self.node, leaf);
                }
            });
        }
    }

    /// Clears the directory's bit of the node, if no leaf of the node has its bit set. If a leaf
    /// has it set after that, sets the bit of the node again.
    fn hide_node(&self) {
        if !self.clears_stale_bits
            || self.directory.node_looks_empty(self.class, self.node)
            || !self.is_empty()
        {
            return;
        }
        let node_bits = &self.directory.node_bits[self.class.index()];
        clear_bit(node_bits, self.node.number(), || {
            if !self.is_empty() {
                set_bit(node_bits, self.node.number());
            }
        });
    }

    /// Returns whether the level below the directory's bit of the node has no set bit.
    fn is_empty(&self) -> bool {
        if ROOT_LEAVES > 1 {
            self.directory.record(self.node).is_none_or(|r| is_zero(r.top(self.class)))
        } else {
            self.directory.part(self.node, 0).is_none_or(|p| is_zero(p.words(self.class)))
        }
    }
}
