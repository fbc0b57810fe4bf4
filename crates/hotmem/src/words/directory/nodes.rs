//! Moves sections to another node, and says which nodes have something online.

use super::Directory;
use super::id::{NodeIndex, NodeSet, SectionId};
use super::sizes::PLANES;
use crate::known::Known;
use crate::sync::{Ordering, fence, mutant};
use crate::words::{Class, Zone};

impl Directory {
    /// Returns the nodes that may have something online. Acquire pairs with the Release in `raise`.
    pub(crate) fn online_nodes(&self) -> NodeSet {
        let online = Zone::ALL.map(|zone| &self.any[Class::online(zone).index()]);
        NodeSet::from_words(core::array::from_fn(|i| {
            online.iter().fold(0, |nodes, any| nodes | any[i].load(Ordering::Acquire))
        }))
    }

    /// Moves the section to `node`, so that searches of that node find everything in it that a
    /// search may still look for. The section has words, no part of it is present, and the pieces
    /// of `node` are installed. For the control path only.
    ///
    /// A publisher that sets a bit beside other bits of the same class relies on the path that
    /// leads to those. That path led through the old node. So after the change, this function sets
    /// a path on the new node for each class whose word is not empty, such as a stale `partial`.
    /// Publishers read the node after they have published.
    pub(crate) fn set_node(&self, id: SectionId, node: NodeIndex) {
        let Some(head) = self.head(id.chunk()).known() else { return };
        let Some(section) = self.section(id).known() else { return };
        if head.node(id.at()) == node {
            return;
        }
        // Relaxed: a reader that does not see the new plane takes too many sections for its own,
        // and checks the node of what it claims.
        let planes = u64::from(usize::BITS - node.number().leading_zeros());
        self.planes.fetch_max(planes, Ordering::Relaxed);
        let bit = 1 << id.at();
        for (i, plane) in head.planes.iter().enumerate().take(PLANES) {
            // Relaxed: the fence below orders these before everything that is published for the new
            // node.
            if node.number() >> i & 1 == 0 {
                plane.fetch_and(!bit, Ordering::Relaxed);
            } else {
                plane.fetch_or(bit, Ordering::Relaxed);
            }
        }
        head.set_node(id.at(), node);
        fence(Ordering::SeqCst); // pairs with the one in `set`
        // Read-modify-writes: a publisher whose access comes later in the order of the word sees
        // the new node. AcqRel pairs with the AcqRel of the publishers.
        let stale = [
            (section.partial.fetch_or(0, Ordering::AcqRel), Class::ALL_PARTIAL),
            (section.free.fetch_or(0, Ordering::AcqRel), Class::ALL_FREE),
        ];
        mutant!("a node changes, and nothing is given a path" => return);
        for (word, classes) in stale {
            if word != 0 {
                classes.iter().for_each(|&class| self.set(class, id));
            }
        }
    }
}
