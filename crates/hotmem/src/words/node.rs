//! NUMA nodes.

use super::Words;
use super::directory::{NodeIndex, NodeSet, Numbers};
use crate::known::Known;

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
    numbers: &'a Numbers,
    new: NodeSet,
}

impl Naming<'_> {
    /// The index of a node, which is given one if it has none.
    pub(crate) fn name(&mut self, node: NodeId) -> Result<NodeIndex, TooManyNodes> {
        if let Some(index) = self.numbers.index_of(node.number()) {
            return Ok(index);
        }
        let index = self.numbers.insert(node.number()).ok_or(TooManyNodes(node))?;
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
        self.new.for_each(|index| self.numbers.forget(index));
    }
}

impl Words {
    /// Gives nodes their indices.
    pub(crate) fn naming(&self) -> Naming<'_> {
        Naming { numbers: &self.numbers, new: NodeSet::default() }
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

    /// All nodes that were ever named.
    pub(crate) fn nodes(&self) -> NodeSet {
        self.numbers.all()
    }
}
