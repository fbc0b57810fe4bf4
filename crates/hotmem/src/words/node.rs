//! NUMA nodes.

use super::directory::NodeIndex;
use crate::known::Known;

/// A NUMA node, numbered as the platform numbers its proximity domains.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Hash, Default)]
pub struct NodeId(u8);

/// Most nodes that a machine can have.
pub const MAX_NODES: usize = if cfg!(loom) { 1 } else { 32 };

impl NodeId {
    /// The node of machines that have no others.
    pub const ZERO: NodeId = NodeId(0);

    /// Node number `n`, or `None` from [`MAX_NODES`] up.
    #[must_use]
    pub const fn new(n: usize) -> Option<NodeId> {
        #[allow(clippy::cast_possible_truncation, reason = "below MAX_NODES")]
        if n < MAX_NODES { Some(NodeId(n as u8)) } else { None }
    }

    /// All that a machine can have, lowest first.
    pub(crate) fn all() -> impl Iterator<Item = NodeId> {
        (0..MAX_NODES).filter_map(NodeId::new)
    }

    /// Its place in the directory.
    #[inline]
    pub(super) fn index(self) -> NodeIndex {
        NodeIndex::new(self.number()).known().unwrap_or(NodeIndex::FIRST)
    }

    /// The node at a place in the directory, which [`index`](Self::index) has given.
    #[inline]
    pub(super) fn from_index(index: NodeIndex) -> NodeId {
        NodeId::new(index.number()).known().unwrap_or(NodeId::ZERO)
    }

    /// Its number.
    #[must_use]
    pub const fn number(self) -> usize {
        self.0 as usize
    }
}

/// Some of the nodes. As an iterator it hands them out, lowest first.
#[derive(Clone, Copy, Default)]
pub(crate) struct NodeSet(u32);

const _: () = assert!(MAX_NODES <= u32::BITS as usize);

impl NodeSet {
    /// The nodes of these numbers.
    #[allow(clippy::cast_possible_truncation, reason = "MAX_NODES bits")]
    pub(super) fn from_bits(bits: u64) -> NodeSet {
        NodeSet(bits as u32)
    }

    pub(crate) fn contains(self, node: NodeId) -> bool {
        self.0 >> node.number() & 1 != 0
    }

    pub(crate) fn insert(&mut self, node: NodeId) {
        self.0 |= 1 << node.number();
    }
}

impl Iterator for NodeSet {
    type Item = NodeId;

    fn next(&mut self) -> Option<NodeId> {
        let lowest = NodeId::new(self.0.trailing_zeros() as usize)?;
        self.0 &= self.0 - 1;
        Some(lowest)
    }
}
