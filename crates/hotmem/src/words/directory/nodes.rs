//! Moves sections to another node, and finds the nodes that have memory online.

use super::Directory;
use super::id::{NodeIndex, NodeSet, SectionId};
use super::sizes::NODE_INDEX_BITS;
use crate::invariant::OrRecordViolation;
use crate::sync::{Ordering, fence, mutant};
use crate::words::{Class, Zone};

impl Directory {
    /// Returns the nodes that may have memory online. Acquire pairs with the Release in `set_bit`.
    pub(crate) fn online_nodes(&self) -> NodeSet {
        let online = Zone::ALL.map(|zone| &self.node_bits[Class::online(zone).index()]);
        NodeSet::from_words(core::array::from_fn(|i| {
            online.iter().fold(0, |nodes, zone_bits| nodes | zone_bits[i].load(Ordering::Acquire))
        }))
    }

    /// Moves a section to `node`. The caller ensures that the section has words, that no part of it
    /// is present, and that the trees of `node` are installed. For the control path only.
    ///
    /// If some bits of a class are set in a word of the section, a CPU that sets another one adds no
    /// path to the tree: it relies on the path that was added with the first bit. But that path is
    /// in the tree of the old node. A word can have set bits although no part of the section is
    /// present: bits of `partial` may be stale. So this function sets a path in the tree of the new
    /// node for each class whose word is not zero. A CPU that sets its bit later than this function
    /// reads the word finds the new node, because it reads the node after it has set the bit. So
    /// its path is in the tree of the new node.
    pub(crate) fn set_node(&self, id: SectionId, node: NodeIndex) {
        let Some(header) = self.chunk_header(id.chunk()).or_record_violation() else { return };
        let Some(section) = self.section(id).or_record_violation() else { return };
        if header.node(id.index_in_chunk()) == node {
            return;
        }
        // Relaxed: a search that reads the old number of bits at worst finds sections of other
        // nodes, and it checks the node of each pageblock that it claims.
        let index_bits = u64::from(usize::BITS - node.number().leading_zeros());
        self.max_index_bits.fetch_max(index_bits, Ordering::Relaxed);
        let section_bit = 1 << id.index_in_chunk();
        for (index_bit, sections) in
            header.sections_by_index_bit.iter().enumerate().take(NODE_INDEX_BITS)
        {
            // Relaxed: the fence below orders these writes before the loads of the section's words.
            if node.number() >> index_bit & 1 == 0 {
                sections.fetch_and(!section_bit, Ordering::Relaxed);
            } else {
                sections.fetch_or(section_bit, Ordering::Relaxed);
            }
        }
        header.set_node(id.index_in_chunk(), node);
        fence(Ordering::SeqCst); // pairs with the fence in `Directory::set_path`
        // These are read-modify-writes, so that a publisher whose write to the word comes later
        // sees the new node. AcqRel pairs with the AcqRel of the publishers.
        let words_and_classes = [
            (section.partial.fetch_or(0, Ordering::AcqRel), Class::ALL_PARTIAL),
            (section.may_have_runs.fetch_or(0, Ordering::AcqRel), Class::ALL_RUNS),
            (section.free.fetch_or(0, Ordering::AcqRel), Class::ALL_FREE),
        ];
        mutant!("no path is set after a node has changed" => return);
        for (word, classes) in words_and_classes {
            if word != 0 {
                classes.iter().for_each(|&class| self.set_path(class, id));
            }
        }
    }
}
