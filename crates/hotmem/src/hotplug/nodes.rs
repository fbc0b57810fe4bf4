//! Lists the nodes that have memory online, and sets the order in which an allocation tries other
//! nodes.

use super::Hotplug;
#[cfg(not(loom))]
use crate::addr::Bytes;
#[cfg(not(loom))]
use crate::invariant::OrViolation;
use crate::mapping::Mapping;
use crate::platform::Platform;
use crate::words::NodeId;
#[cfg(not(loom))]
use crate::words::{FrameSource, SectionWords, TooManyNodes};
use core::fmt;

/// The reason why an order of nodes could not be set. The failed call changed nothing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[cfg(not(loom))]
pub enum FallbackError {
    /// This node would be one more than the [`MAX_NODES`](crate::MAX_NODES) that a machine can
    /// have.
    TooManyNodes(NodeId),
    /// The record of the node needs this much kernel memory, and less is free.
    NoMetadata(Bytes),
}

impl<P: Platform, M: Mapping> Hotplug<'_, P, M> {
    /// Returns the nodes that have memory online.
    pub fn nodes(&self) -> impl Iterator<Item = NodeId> {
        let nodes = self.words().nodes().filter(|&node| self.is_populated(node));
        nodes.map(|node| self.words().node_of_index(node))
    }

    /// Sets the fallback order of `node`, which need not have memory yet. From now on, an
    /// allocation near `node` that finds no memory on `node` tries the nodes of `fallback` in this
    /// order. After these, it tries the remaining nodes in the order of their numbers modulo
    /// [`MAX_NODES`](crate::MAX_NODES). A concurrent allocation may see a part of the new order.
    ///
    /// Cost: O(nodes in the order), and 4 KiB of memory if no range was announced for the node.
    ///
    /// # Errors
    /// [`FallbackError`].
    #[cfg(not(loom))]
    pub fn set_fallback(&mut self, node: NodeId, fallback: &[NodeId]) -> Result<(), FallbackError> {
        let words = self.words();
        let mut nodes = words.assign_indices();
        let mut assign = |node| {
            nodes.assign(node).map_err(|TooManyNodes(node)| FallbackError::TooManyNodes(node))
        };
        let node = assign(node)?;
        fallback.iter().try_for_each(|&other| assign(other).map(|_| ()))?;
        let needed = words.runs_for_node(node);
        let mut make_record = |words: &SectionWords, reserved_runs: &mut &mut dyn FrameSource| {
            words.install_node(node, reserved_runs)
        };
        let allocated = self.allocate_word_memory(needed, &mut make_record);
        allocated.map_err(FallbackError::NoMetadata)?;
        nodes.commit();
        // Keep only the first occurrence of each node: otherwise, repeated nodes would leave no
        // place for the last ones.
        let is_first = |&(nth, other): &(usize, &NodeId)| !fallback[..nth].contains(other);
        let fallback = fallback.iter().enumerate().filter(is_first).map(|(_, &other)| other);
        let fallback = fallback.filter_map(|other| words.index_of(other));
        if let Some(record) = words.record(node).or_violation() {
            record.set_fallback(fallback.filter(|&other| other != node));
        }
        Ok(())
    }
}

#[cfg(not(loom))]
impl fmt::Display for FallbackError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            FallbackError::TooManyNodes(node) => too_many(f, *node),
            FallbackError::NoMetadata(bytes) => {
                write!(f, "{bytes} of kernel memory for the node's record are not free")
            }
        }
    }
}

#[cfg(not(loom))]
impl core::error::Error for FallbackError {}

/// Writes that a node would be one more than a machine can have.
pub(super) fn too_many(f: &mut fmt::Formatter<'_>, node: NodeId) -> fmt::Result {
    let (node, most) = (node.0, crate::MAX_NODES);
    write!(f, "node {node} would be one more than the {most} that a machine can have")
}
