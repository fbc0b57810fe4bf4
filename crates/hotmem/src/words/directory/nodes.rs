//! Moves sections to another node, and finds the nodes that have memory online.

use super::Directory;
use super::id::{NodeIndex, NodeSet, SectionId};
use super::sizes::PLANES;
use crate::known::Known;
use crate::sync::{Ordering, fence, mutant};
use crate::words::{Class, Zone};

impl Directory {
    /// Returns the nodes that may have memory online. Acquire pairs with the Release in `set_bit`.
    pub(crate) fn online_nodes(&self) -> NodeSet {
        let online = Zone::ALL.map(|zone| &self.node_bits[Class::online(zone).index()]);
        NodeSet::from_words(core::array::from_fn(|i| {
            online.iter().fold(0, |nodes, any| nodes | any[i].load(Ordering::Acquire))
        }))
    }

    /// Moves a section to `node`, so that searches of `node` find the section for each class that
    /// it has bits of. The section has words, no part of it is present, and the pieces of `node`
    /// are installed. For the control path only.
    ///
    /// A publisher that sets a bit of a word in which other bits of the same class are set sets no
    /// path, because a path leads to the section already. But that path is one of the old node. So
    /// after the change, this function sets a path of the new node for each class whose word is not
    /// zero; `partial`, for example, may have stale bits. A publisher that does set a path reads
    /// the node after it has published.
    pub(crate) fn set_node(&self, id: SectionId, node: NodeIndex) {
        let Some(head) = self.head(id.chunk()).known() else { return };
        let Some(section) = self.section(id).known() else { return };
        if head.node(id.index_in_chunk()) == node {
            return;
        }
        // Relaxed: a searcher that does not see the new value also finds sections of other nodes,
        // and it checks the node of each pageblock that it claims.
        let planes = u64::from(usize::BITS - node.number().leading_zeros());
        self.planes.fetch_max(planes, Ordering::Relaxed);
        let bit = 1 << id.index_in_chunk();
        for (i, plane) in head.planes.iter().enumerate().take(PLANES) {
            // Relaxed: the fence below orders these writes before the loads of `partial` and
            // `free`.
            if node.number() >> i & 1 == 0 {
                plane.fetch_and(!bit, Ordering::Relaxed);
            } else {
                plane.fetch_or(bit, Ordering::Relaxed);
            }
        }
        head.set_node(id.index_in_chunk(), node);
        fence(Ordering::SeqCst); // pairs with the fence in `Directory::set_path`
        // These are read-modify-writes, so that a publisher whose write to the word comes later
        // sees the new node. AcqRel pairs with the AcqRel of the publishers.
        let stale = [
            (section.partial.fetch_or(0, Ordering::AcqRel), Class::ALL_PARTIAL),
            (section.free.fetch_or(0, Ordering::AcqRel), Class::ALL_FREE),
        ];
        mutant!("no path is set after a node has changed" => return);
        for (word, classes) in stale {
            if word != 0 {
                classes.iter().for_each(|&class| self.set_path(class, id));
            }
        }
    }
}
