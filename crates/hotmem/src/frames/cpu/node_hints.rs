//! Sets and clears the hints of nodes: for each node and CPU, the pageblock from which the CPU's last
//! request near that node was served.
//!
//! The hints of a CPU are the pageblocks from which it allocates without a search. A request that names
//! a node must not replace them. If such requests had no hint at all, each would divide a free
//! pageblock, and its free would make the pageblock whole again. So each node remembers a pageblock
//! for each of a few CPUs, and a free by such a CPU leaves this pageblock divided.
//!
//! Unlike the hint of a CPU, the hint of a node hides nothing: the `partial` bit of its pageblock
//! stays set, so that all searches find its free frames. One case differs: a pageblock that stays
//! divided although all its frames are free. Neither `partial` nor `free` leads to it, so
//! [`hinted_blocks`](CallContext::hinted_blocks) includes the hints of nodes.

use crate::frames::AllocRequest;
use crate::frames::CallContext;
use crate::platform::Platform;
use crate::sync::{AtomicU64, Ordering, mutant};
use crate::words::{Block, Grain, NodeId, NodeIndex, NodeRecord, Zone};

impl<'f, P: Platform> CallContext<'f, P> {
    /// Returns the pageblock from which this CPU's last request near the same node was served.
    /// Returns `None` if the request names no node, or is restricted in another way.
    pub(in crate::frames) fn node_block_for(
        &self,
        zone: Zone,
        request: &AllocRequest,
    ) -> Option<Block<'f>> {
        let node = request.restricting_node()?;
        let hint = self.node_hint(self.node_with_hints(node)?, zone, request.grain())?;
        // Acquire pairs with the swap that set the hint.
        let block = self.words().hinted_block(hint.load(Ordering::Acquire))?;
        (block.zone() == zone && block.is_on(self.words(), node)).then_some(block)
    }

    /// Makes `block`, from which `request` was served, the hint of the node that the request names.
    /// Does nothing if the pageblock is on another node or in low memory, or if the request is
    /// restricted in another way. The caller has made the pageblock findable.
    pub(in crate::frames) fn set_node_hint(
        &self,
        block: Block<'_>,
        zone: Zone,
        request: &AllocRequest,
    ) {
        let Some(node) = request.restricting_node() else { return };
        if !block.is_on(self.words(), node) || block.start() < self.low_end() {
            return;
        }
        let hint = self.node_hint(block.node(self.words()), zone, request.grain());
        let Some(hint) = hint else { return };
        self.start_hiding();
        // Release: a search that sees the end of the hiding step also sees this store.
        self.frames.has_node_hints.store(1, Ordering::Release);
        // `SeqCst`: as in `set_block_hint`. If a free has read the old hint, it has left the former
        // pageblock divided. Then the code below sees the bits that the free has set.
        let former = hint.swap(block.to_hint(), Ordering::SeqCst);
        mutant!("the former pageblock of a node's hint stays divided" => return);
        if former != block.to_hint() {
            self.make_former_hint_findable(former);
        }
    }

    /// Returns whether `block` is this CPU's hint in the node of `block`. The caller has freed frames of
    /// it.
    pub(in crate::frames) fn is_node_hint(&self, block: Block<'_>) -> bool {
        if !self.has_node_hints() {
            return false;
        }
        let node = block.node(self.words());
        [Grain::Frame, Grain::Run].into_iter().any(|grain| {
            let hint = self.node_hint(node, block.zone(), grain);
            hint.is_some_and(|hint| hint.load(Ordering::SeqCst) == block.to_hint())
        })
    }

    /// Iterates over the hints of all nodes.
    pub(super) fn node_hints(&self) -> impl Iterator<Item = &'f AtomicU64> + use<'f, P> {
        let words = self.words();
        let nodes = self.has_node_hints().then(|| words.nodes());
        let records = nodes.into_iter().flatten().filter_map(move |node| words.record(node));
        records.flat_map(NodeRecord::hints)
    }

    fn node_hint(&self, node: NodeIndex, zone: Zone, grain: Grain) -> Option<&'f AtomicU64> {
        Some(self.words().record(node)?.hint(self.frames.platform.cpu(), zone, grain))
    }

    fn node_with_hints(&self, node: NodeId) -> Option<NodeIndex> {
        if self.has_node_hints() { self.words().index_of(node) } else { None }
    }

    /// Returns whether a hint of a node was ever set. Acquire pairs with the Release in
    /// `set_node_hint`.
    fn has_node_hints(&self) -> bool {
        self.frames.has_node_hints.load(Ordering::Acquire) != 0
    }
}
