//! Finds the sections of a node and class, by ascending or descending number.
//!
//! The lowest level, a word for each class and chunk, is common to all nodes. Above that each node
//! has its own tree: a bit for each chunk in its part of a leaf, and a bit for each leaf in its
//! record. At the top, the whole machine has a bit for each node. The bit of a chunk in node n's
//! tree summarises *word of the chunk & sections of node n*.
//!
//! The bits are **hints**: a set bit may be stale; a clear bit is wrong only while an operation is
//! in flight. Two rules keep this true:
//! - A setter, which has made a section nonempty, passes a SeqCst fence, reads the section's node,
//!   and then makes sure that the bits above the section are set, always up to the top. It loads
//!   each bit, and does a read-modify-write only where the bit is clear. It does not stop at a set
//!   bit: the CPU that set it may not have set the bits above yet, or the section's previous node
//!   may have left it.
//! - Only a searcher that found everything below a bit empty clears the bit. It then passes a
//!   SeqCst fence, reads all of it again, and sets the bit again, up to the top, if something is
//!   there now. It clears a bit of the lowest level only if the section itself is empty, never
//!   because the section belongs to another node.
//!
//! Each of the two fences pairs with the other: of a setter and a searcher that cross, at least one
//! sees what the other did. A set bit over a missing piece counts as a bit over nothing, and is
//! cleared in the same way.

use super::level::{first_set, is_zero, last_of_all, last_set, lower, raise};
use super::pieces::Head;
use super::sizes::{CHUNK_SECTIONS, LEAF_CHUNKS, PLANES, ROOT_LEAVES};
use super::{Directory, NodeIndex, SectionId};
use crate::geometry::mask;
use crate::known::Known;
use crate::sync::{AtomicU64, Ordering, fence, mutant};
use crate::words::Class;

/// How many words [`set`](Directory::set) reads.
pub(crate) const PATH_LEN: u64 = if ROOT_LEAVES > 1 { 4 } else { 3 };

/// The sections of a node that the tree of one class leads to.
#[derive(Clone, Copy)]
pub(crate) struct Paths<'a> {
    directory: &'a Directory,
    node: NodeIndex,
    class: Class,
    /// Whether a search clears stale bits.
    clears: bool,
}

impl Directory {
    /// Makes sure that searches find a section. The caller has just made it nonempty.
    pub(crate) fn set(&self, class: Class, id: SectionId) {
        fence(Ordering::SeqCst); // pairs with the one in `lower`
        let Some(head) = self.head(id.chunk()).known() else { return };
        let tree = core::slice::from_ref(&head.tree[class.index()]);
        mutant!("a path stops at a set bit" => if !raise(tree, id.at()) { return });
        raise(tree, id.at());
        self.set_above(class, head.node(id.at()), id.chunk());
    }

    fn set_above(&self, class: Class, node: NodeIndex, chunk: usize) {
        // The control path makes the pieces of a node before a section belongs to it.
        let (leaf, at) = (chunk / LEAF_CHUNKS, chunk % LEAF_CHUNKS);
        if let Some(part) = self.part(node, leaf).known() {
            raise(part.words(class), at);
        }
        self.set_leaf(class, node, leaf);
    }

    fn set_leaf(&self, class: Class, node: NodeIndex, leaf: usize) {
        if ROOT_LEAVES > 1
            && let Some(record) = self.record(node).known()
        {
            raise(record.top(class), leaf);
        }
        raise(&self.any[class.index()], node.number());
    }

    /// Clears the bit of a section that a searcher found empty. If `is_empty` no longer holds after
    /// that, sets the bit again.
    pub(crate) fn clear(&self, class: Class, id: SectionId, is_empty: impl Fn() -> bool) {
        let Some(head) = self.head(id.chunk()).known() else { return };
        let tree = &head.tree[class.index()];
        mutant!("all sections of a chunk are hidden with one" => tree.store(0, Ordering::SeqCst));
        tree.fetch_and(!(1 << id.at()), Ordering::AcqRel);
        fence(Ordering::SeqCst); // pairs with the one in `set`
        if !is_empty() {
            self.set(class, id);
        }
    }

    /// Returns whether all bits above a section are set.
    pub(crate) fn leads_to(&self, class: Class, id: SectionId) -> bool {
        let Some(head) = self.head(id.chunk()) else { return false };
        let is_set = |words: &[AtomicU64], bit: usize| {
            words.get(bit / 64).is_some_and(|w| w.load(Ordering::Relaxed) >> (bit % 64) & 1 != 0)
        };
        let node = head.node(id.at());
        let (leaf, at) = (id.chunk() / LEAF_CHUNKS, id.chunk() % LEAF_CHUNKS);
        is_set(core::slice::from_ref(&head.tree[class.index()]), id.at())
            && self.part(node, leaf).is_some_and(|part| is_set(part.words(class), at))
            && (ROOT_LEAVES == 1
                || self.record(node).is_some_and(|record| is_set(record.top(class), leaf)))
            && is_set(&self.any[class.index()], node.number())
    }

    /// Returns whether the paths of a class lead nowhere, on any node. Cost: a load for each 64
    /// nodes that a machine can have.
    #[inline]
    pub(crate) fn looks_empty(&self, class: Class) -> bool {
        self.any[class.index()].iter().all(|word| word.load(Ordering::Acquire) == 0)
    }

    /// Returns whether the paths of a class lead nowhere on one node.
    #[inline]
    pub(crate) fn node_looks_empty(&self, class: Class, node: NodeIndex) -> bool {
        let n = node.number();
        self.any[class.index()][n / 64].load(Ordering::Acquire) >> (n % 64) & 1 == 0
    }

    /// Returns the paths of a class to sections of a node.
    #[inline]
    pub(crate) fn paths(&self, node: NodeIndex, class: Class) -> Paths<'_> {
        Paths { directory: self, node, class, clears: true }
    }

    /// Returns the sections of a chunk that belong to a node.
    #[inline]
    fn sections_of(&self, head: &Head, node: NodeIndex) -> u64 {
        let n = node.number();
        // Relaxed: see `set_node`.
        #[allow(clippy::cast_possible_truncation, reason = "at most 8")]
        let planes = self.planes.load(Ordering::Relaxed) as usize;
        let planes = planes.max((usize::BITS - n.leading_zeros()) as usize).min(PLANES);
        let planes = head.planes[..planes].iter().enumerate();
        planes.fold(mask(CHUNK_SECTIONS), |sections, (i, plane)| {
            let plane = plane.load(Ordering::Relaxed);
            sections & if n >> i & 1 == 0 { !plane } else { plane }
        })
    }
}

impl<'a> Paths<'a> {
    /// Returns the same paths for code that only looks. A search over them clears no bit, so that
    /// it never hides a section from the searches of the allocator, not even for a moment.
    pub(crate) fn peeking(self) -> Paths<'a> {
        mutant!("an onlooker clears on its way" => return self);
        Paths { clears: false, ..self }
    }

    /// Clears the bit of a section without words that the paths lead to, and sets it again if the
    /// section has something by then.
    pub(crate) fn hide_absent(self, id: SectionId) {
        if !self.clears {
            return;
        }
        mutant!("a bit over missing words is cleared for good" => {
            return self.directory.clear(self.class, id, || true);
        });
        self.directory.clear(self.class, id, || {
            self.directory.section(id).is_none_or(|section| section.available(self.class) == 0)
        });
    }

    /// Returns the first section at or above `from` that may have something. Cost: a few loads for
    /// each level.
    #[cfg(test)]
    pub(crate) fn next(self, from: SectionId) -> Option<SectionId> {
        self.next_counted(from, &mut 0)
    }

    /// Returns the first section at or above `from` that may have something, and counts the words
    /// that it reads.
    #[inline]
    pub(crate) fn next_counted(self, from: SectionId, words: &mut u64) -> Option<SectionId> {
        let mut chunk = from.chunk();
        let mut wanted = !mask(from.at());
        loop {
            *words += 1;
            let found = self.in_chunk(chunk) & wanted;
            if found != 0 {
                return Some(SectionId::of_chunk(chunk, found.trailing_zeros() as usize));
            }
            if wanted == u64::MAX && self.clears {
                self.hide_chunk(chunk);
            }
            wanted = u64::MAX;
            chunk = self.next_chunk(chunk + 1, words)?;
        }
    }

    /// Returns the last section at or below `from` that may have something, and counts the words
    /// that it reads.
    pub(crate) fn prev_counted(self, from: SectionId, words: &mut u64) -> Option<SectionId> {
        let mut chunk = from.chunk();
        let mut wanted = mask(from.at() + 1);
        loop {
            *words += 1;
            let found = self.in_chunk(chunk) & wanted;
            if let Some(last) = found.checked_ilog2() {
                return Some(SectionId::of_chunk(chunk, last as usize));
            }
            if wanted == u64::MAX && self.clears {
                self.hide_chunk(chunk);
            }
            wanted = u64::MAX;
            chunk = self.prev_chunk(chunk, words)?;
        }
    }

    /// Returns the node's sections of a chunk for which the lowest level has bits.
    #[inline]
    fn in_chunk(self, chunk: usize) -> u64 {
        self.directory.head(chunk).map_or(0, |head| {
            // Acquire pairs with the Release in `raise`.
            let tree = head.tree[self.class.index()].load(Ordering::Acquire);
            if tree == 0 { 0 } else { tree & self.directory.sections_of(head, self.node) }
        })
    }

    /// Returns the first chunk at or above `from` in which the node may have something.
    fn next_chunk(self, from: usize, words: &mut u64) -> Option<usize> {
        if self.directory.node_looks_empty(self.class, self.node) {
            return None;
        }
        let (mut leaf, mut first) = (from / LEAF_CHUNKS, from % LEAF_CHUNKS);
        loop {
            if leaf >= ROOT_LEAVES {
                return None;
            }
            if let Some(part) = self.directory.part(self.node, leaf)
                && let Some(at) = first_set(part.words(self.class), first, words)
            {
                return Some(leaf * LEAF_CHUNKS + at);
            }
            if first == 0 && self.clears {
                self.hide_leaf(leaf);
            }
            first = 0;
            let next = if ROOT_LEAVES > 1 {
                let record = self.directory.record(self.node);
                record.and_then(|r| first_set(r.top(self.class), leaf + 1, words))
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

    /// Returns the last chunk below `below` in which the node may have something.
    fn prev_chunk(self, below: usize, words: &mut u64) -> Option<usize> {
        if self.directory.node_looks_empty(self.class, self.node) {
            return None;
        }
        let (mut leaf, mut end) = (below / LEAF_CHUNKS, below % LEAF_CHUNKS);
        loop {
            if end != 0
                && let Some(part) = self.directory.part(self.node, leaf)
                && let Some(at) = last_of_all(part.words(self.class), end, words)
            {
                return Some(leaf * LEAF_CHUNKS + at);
            }
            if end == LEAF_CHUNKS && self.clears {
                self.hide_leaf(leaf);
            }
            end = LEAF_CHUNKS;
            let next = if ROOT_LEAVES > 1 {
                let record = self.directory.record(self.node);
                record.and_then(|r| last_set(r.top(self.class), leaf, words))
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

    /// Clears the bit of a chunk in which a searcher found nothing of the node, if the bit is set.
    fn hide_chunk(self, chunk: usize) {
        let (leaf, at) = (chunk / LEAF_CHUNKS, chunk % LEAF_CHUNKS);
        let Some(part) = self.directory.part(self.node, leaf) else { return };
        lower(part.words(self.class), at, || {
            // Everything is read again: the chunk, the tree and the nodes.
            if self.in_chunk(chunk) == 0 {
                return;
            }
            mutant!("setting again does not propagate" => {
                raise(part.words(self.class), at);
                return;
            });
            self.directory.set_above(self.class, self.node, chunk);
        });
    }

    /// Does the same for the bit of a leaf in which no chunk has a bit.
    fn hide_leaf(self, leaf: usize) {
        if ROOT_LEAVES > 1
            && let Some(record) = self.directory.record(self.node)
        {
            lower(record.top(self.class), leaf, || {
                let part = self.directory.part(self.node, leaf);
                if part.is_some_and(|part| !is_zero(part.words(self.class))) {
                    self.directory.set_leaf(self.class, self.node, leaf);
                }
            });
        }
    }

    /// Does the same for the bit of the node, if no leaf has a bit.
    fn hide_node(self) {
        if !self.clears
            || self.directory.node_looks_empty(self.class, self.node)
            || !self.is_empty()
        {
            return;
        }
        let any = &self.directory.any[self.class.index()];
        lower(any, self.node.number(), || {
            if !self.is_empty() {
                raise(any, self.node.number());
            }
        });
    }

    /// Returns whether the level below the bit of the node has no bits.
    fn is_empty(self) -> bool {
        if ROOT_LEAVES > 1 {
            self.directory.record(self.node).is_none_or(|r| is_zero(r.top(self.class)))
        } else {
            self.directory.part(self.node, 0).is_none_or(|p| is_zero(p.words(self.class)))
        }
    }
}
