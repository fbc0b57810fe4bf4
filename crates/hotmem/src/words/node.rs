//! NUMA nodes.

use super::Words;
use super::directory::{NodeIndex, NodeRecord, NodeSet};
use crate::known::Known;
use crate::sync::Ordering;

/// A NUMA node, by the platform's own number: an ACPI proximity domain or a PAPR associativity
/// domain, for example.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Hash, Default)]
pub struct NodeId(u32);

impl NodeId {
    /// The node of machines that have no others.
    pub const ZERO: NodeId = NodeId(0);

    /// Node number `number`. A machine can have [`MAX_NODES`](crate::MAX_NODES) of them.
    #[must_use]
    pub const fn new(number: u32) -> NodeId {
        NodeId(number)
    }

    /// Its number.
    #[must_use]
    pub const fn number(self) -> u32 {
        self.0
    }
}

/// This node would be one more than a machine can have.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct TooManyNodes(pub(crate) NodeId);

/// Gives nodes their indices. Those that are new lose them again when it is dropped, unless they are
/// [kept](Self::keep). For the control path, which is alone.
pub(crate) struct Naming<'a> {
    words: &'a Words,
    new: NodeSet,
}

impl Naming<'_> {
    /// The index of a node, which is given one if it has none.
    ///
    /// Cost: O(1), or O(sections) where as many nodes as there can be have been named.
    pub(crate) fn name(&mut self, node: NodeId) -> Result<NodeIndex, TooManyNodes> {
        if let Some(index) = self.words.index_of(node) {
            return Ok(index);
        }
        let numbers = &self.words.numbers;
        let index = numbers.insert(node.number()).or_else(|| {
            self.words.forget_unused_nodes(self.new);
            numbers.insert(node.number())
        });
        let index = index.ok_or(TooManyNodes(node))?;
        self.new.insert(index);
        Ok(index)
    }

    /// They keep their indices for good.
    pub(crate) fn keep(mut self) {
        self.new = NodeSet::default();
    }
}

impl Drop for Naming<'_> {
    fn drop(&mut self) {
        self.new.for_each(|index| self.words.numbers.forget(index));
    }
}

impl Words {
    /// Gives nodes their indices.
    pub(crate) fn naming(&self) -> Naming<'_> {
        Naming { words: self, new: NodeSet::default() }
    }

    /// Takes their indices from nodes that have no memory and that no order of nodes names, but for
    /// `new` ones.
    fn forget_unused_nodes(&self, new: NodeSet) {
        let mut used = new;
        for section in self.sections() {
            let there = section.present.load(Ordering::Acquire) | section.device();
            if there | section.isolated.load(Ordering::Acquire) != 0 {
                used.insert(section.node());
            }
        }
        for node in self.nodes() {
            for other in self.record(node).into_iter().flat_map(NodeRecord::fallback) {
                used.insert(node);
                used.insert(other);
            }
        }
        self.nodes().without(used).for_each(|node| self.numbers.forget(node));
    }

    /// The index of a node that has one.
    #[inline]
    pub(crate) fn index_of(&self, node: NodeId) -> Option<NodeIndex> {
        self.numbers.index_of(node.number())
    }

    /// The node with this index, which was given to it.
    #[inline]
    pub(crate) fn node_named(&self, index: NodeIndex) -> NodeId {
        NodeId(self.numbers.number_of(index).known().unwrap_or(0))
    }

    /// Whether a node has this index. What is absent may have one that was given away.
    #[inline]
    pub(crate) fn is_node(&self, index: NodeIndex, node: NodeId) -> bool {
        self.numbers.number_of(index) == Some(node.number())
    }

    /// All nodes that were ever named.
    pub(crate) fn nodes(&self) -> NodeSet {
        self.numbers.all()
    }
}
