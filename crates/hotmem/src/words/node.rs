//! Converts between the platform's numbers of NUMA nodes and the nodes' indices in the engine's
//! tables.

use super::SectionWords;
use super::directory::{NodeIndex, NodeSet};
use crate::invariant::OrRecordViolation;

/// A NUMA node, by the platform's own number: an ACPI proximity domain or a PAPR associativity
/// domain, for example. A machine can have [`MAX_NODES`](crate::MAX_NODES) nodes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Hash, Default)]
pub struct NodeId(pub u32);

impl NodeId {
    /// The node of a machine that has only one.
    pub const ZERO: NodeId = NodeId(0);
}

/// The error for a node that would exceed the number of nodes that a machine can have.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct TooManyNodes(pub(crate) NodeId);

/// Gives indices to nodes. When this value is dropped, the indices that it gave are taken back,
/// unless they are [committed](Self::commit). For the control path only.
pub(crate) struct IndexAssignment<'a> {
    words: &'a SectionWords,
    new_indices: NodeSet,
}

impl IndexAssignment<'_> {
    /// Returns the index of a node. If the node has no index, gives it one.
    ///
    /// Cost: O(1), or O(sections) if all indices are in use.
    pub(crate) fn assign(&mut self, node: NodeId) -> Result<NodeIndex, TooManyNodes> {
        if let Some(index) = self.words.index_of(node) {
            return Ok(index);
        }
        let numbers = &self.words.numbers;
        let index = numbers.insert(node.0).or_else(|| {
            self.words.forget_unused_nodes(self.new_indices);
            numbers.insert(node.0)
        });
        let index = index.ok_or(TooManyNodes(node))?;
        self.new_indices.insert(index);
        Ok(index)
    }

    /// Makes the new indices permanent.
    pub(crate) fn commit(mut self) {
        self.new_indices = NodeSet::default();
    }
}

impl Drop for IndexAssignment<'_> {
    fn drop(&mut self) {
        self.new_indices.for_each(|index| self.words.numbers.forget(index));
    }
}

impl SectionWords {
    /// Starts giving indices to nodes.
    pub(crate) fn assign_indices(&self) -> IndexAssignment<'_> {
        IndexAssignment { words: self, new_indices: NodeSet::default() }
    }

    /// Takes back the indices of nodes that have no memory, except those of `new_nodes`.
    fn forget_unused_nodes(&self, new_nodes: NodeSet) {
        let mut used_nodes = new_nodes;
        for section in self.sections() {
            if section.blocks_in_use() != 0 {
                used_nodes.insert(section.node(self));
            }
        }
        self.nodes().without(used_nodes).for_each(|node| self.numbers.forget(node));
    }

    /// Returns the index of a node, if it has one.
    #[inline]
    pub(crate) fn index_of(&self, node: NodeId) -> Option<NodeIndex> {
        self.numbers.index_of(node.0)
    }

    /// Returns the node that has this index.
    #[inline(never)]
    pub(crate) fn node_of_index(&self, index: NodeIndex) -> NodeId {
        NodeId(self.numbers.number_of(index).or_record_violation().unwrap_or(0))
    }

    /// Returns whether a node has this index. Compare nodes by this function and not by their indices: a
    /// section whose memory is absent keeps its old index, which another node may have got since.
    #[inline]
    pub(crate) fn is_node(&self, index: NodeIndex, node: NodeId) -> bool {
        self.numbers.has_index(node.0, index)
    }

    /// Returns all nodes that have an index.
    pub(crate) fn nodes(&self) -> NodeSet {
        self.numbers.all()
    }
}
