//! Lists the nodes that have memory online.

use super::Hotplug;
use crate::mapping::Map;
use crate::platform::Platform;
use crate::words::NodeId;
use core::fmt;

impl<P: Platform, M: Map> Hotplug<'_, P, M> {
    /// Returns the nodes that have memory online.
    pub fn nodes(&self) -> impl Iterator<Item = NodeId> {
        let nodes = self.words().nodes().filter(|&node| self.is_populated(node));
        nodes.map(|node| self.words().node_of_index(node))
    }
}

/// Writes that a node would be one more than a machine can have.
pub(super) fn too_many(f: &mut fmt::Formatter<'_>, node: NodeId) -> fmt::Result {
    let (node, most) = (node.0, crate::MAX_NODES);
    write!(f, "node {node} would be one more than the {most} that a machine can have")
}
