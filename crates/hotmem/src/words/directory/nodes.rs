//! The node of a section, and the nodes that have something.

use super::Directory;
use super::id::{NodeIndex, NodeSet, SectionId};
use super::sizes::PLANES;
use crate::known::Known;
use crate::sync::{Ordering, fence, mutant};
use crate::words::{Class, Zone};

impl Directory {
    /// The nodes that may have something online. Acquire pairs with the Release in `raise`.
    pub(crate) fn online_nodes(&self) -> NodeSet {
        let online = Zone::ALL.map(|zone| &self.any[Class::online(zone).index()]);
        NodeSet::from_words(core::array::from_fn(|i| {
            online.iter().fold(0, |nodes, any| nodes | any[i].load(Ordering::Acquire))
        }))
    }

    /// The control path only: the section is `node`'s from now on, and everything of it that
    /// somebody may still look for is found there. It has words, nothing of it is present, and the
    /// pieces of `node` are installed.
    ///
    /// Whoever publishes something beside other pageblocks of its class counts on the path to
    /// those. That path led through the old node; so after the change each class word that is
    /// not empty, such as a stale `partial`, is given a path on the new one. Publishers choose the
    /// node after they have published.
    pub(crate) fn set_node(&self, id: SectionId, node: NodeIndex) {
        let Some(head) = self.head(id.chunk()).known() else { return };
        let Some(section) = self.section(id).known() else { return };
        if head.node(id.at()) == node {
            return;
        }
        // Relaxed: a reader that does not know of the new plane sees more sections as its own, and
        // looks at the node of what it claims.
        let planes = u64::from(usize::BITS - node.number().leading_zeros());
        self.planes.fetch_max(planes, Ordering::Relaxed);
        let bit = 1 << id.at();
        for (i, plane) in head.planes.iter().enumerate().take(PLANES) {
            // Relaxed: the fence below orders them before all that is published for the new node.
            if node.number() >> i & 1 == 0 {
                plane.fetch_and(!bit, Ordering::Relaxed);
            } else {
                plane.fetch_or(bit, Ordering::Relaxed);
            }
        }
        head.set_node(id.at(), node);
        fence(Ordering::SeqCst); // pairs with the one in `set`
        // Read-modify-writes: who publishes after them sees the new node. AcqRel pairs with that
        // of the publishes.
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
