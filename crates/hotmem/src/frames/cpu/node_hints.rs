//! Sets and clears the hints and the cursors of nodes: for each node and CPU, the pageblock from which the
//! CPU's last request near that node was served, and the word from which its last single frame near that
//! node came.
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

use crate::addr::Pfn;
use crate::frames::{AllocRequest, CallContext, Frames};
use crate::geometry::BITMAP_WORD_BITS;
use crate::invariant::OrRecordViolation;
use crate::platform::Platform;
use crate::sync::{AtomicU64, Ordering, fence, mutant, sequential};
use crate::words::{Block, Grain, NodeId, NodeIndex, NodeRecord, Zone, hint_at};

impl<P: Platform> Frames<P> {
    /// Returns whether the pageblock of `frame` is this CPU's hint for single frames in its node. The
    /// caller has freed a frame of the pageblock, which is of `zone`.
    #[inline(always)]
    pub(in crate::frames) fn is_node_hint_for_frames(&self, frame: Pfn, zone: Zone) -> bool {
        let Some(record) = self.record_with_hints(frame) else { return false };
        sequential();
        let hint = record.hint(self.platform.cpu(), zone, Grain::Frame);
        hint.load(Ordering::SeqCst) == hint_at(frame)
    }

    /// Returns whether `block` is this CPU's hint in the node of `block`. The caller has freed frames of
    /// it.
    #[inline(never)]
    pub(in crate::frames) fn is_node_hint(&self, block: Block<'_>) -> bool {
        let Some(record) = self.record_with_hints(block.start()) else { return false };
        sequential();
        [Grain::Frame, Grain::Run].into_iter().any(|grain| {
            let hint = record.hint(self.platform.cpu(), block.zone(), grain);
            hint.load(Ordering::SeqCst) == block.to_hint()
        })
    }

    /// Returns the record of the node of `frame`, if a hint of a node was ever set.
    #[inline]
    fn record_with_hints(&self, frame: Pfn) -> Option<&NodeRecord> {
        if !self.has_node_hints() {
            return None;
        }
        self.words.record(self.words.node_index_at(frame))
    }

    fn node_with_hints(&self, node: NodeId) -> Option<NodeIndex> {
        if self.has_node_hints() { self.words.index_of(node) } else { None }
    }

    /// Returns whether a hint of a node was ever set. Acquire pairs with the Release in
    /// `set_node_hint`.
    fn has_node_hints(&self) -> bool {
        self.has_node_hints.load(Ordering::Acquire) != 0
    }
}

impl<'f, P: Platform> CallContext<'f, P> {
    /// Returns the pageblock from which this CPU's last request near the same node was served.
    /// Returns `None` if the request names no node, or is restricted in another way.
    pub(in crate::frames) fn node_block_for(
        &self,
        zone: Zone,
        request: &AllocRequest,
    ) -> Option<Block<'f>> {
        let node = request.restricting_node()?;
        let hint = self.node_hint(self.frames.node_with_hints(node)?, zone, request.grain())?;
        // Acquire pairs with the swap that set the hint.
        let block = self.words().hinted_block(hint.load(Ordering::Acquire))?;
        (block.zone() == zone && block.is_on(self.words(), node)).then_some(block)
    }

    /// Makes `block`, from which `request` was served, the hint of the node that the request names.
    /// Does nothing if the pageblock is on another node, or if the request is restricted in another
    /// way. The caller has made the pageblock findable.
    pub(in crate::frames) fn set_node_hint(
        &self,
        block: Block<'_>,
        zone: Zone,
        request: &AllocRequest,
    ) {
        let Some(node) = request.restricting_node() else { return };
        if !block.is_on(self.words(), node) {
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
        mutant!("a node's hint in low memory is not noted" => return);
        self.note_hint_in(block.section(), zone, Some(request.grain()));
    }

    /// Points this CPU's cursor of `node` to the word of `frame`, which the caller owns. Does nothing if
    /// the frame is on another node.
    pub(in crate::frames) fn point_node_cursor(&self, node: NodeId, frame: Pfn) {
        let Some(block) = self.words().block_of(frame).or_record_violation() else { return };
        let index = block.node(self.words());
        if !self.words().is_node(index, node) {
            return;
        }
        let word = block.offset_of(frame) / BITMAP_WORD_BITS;
        if let Some(word) = block.section().words().bitmaps.lasting_word(block.bit(), word)
            && let Some(record) = self.words().record(index).or_record_violation()
        {
            record.cursor(self.frames.platform.cpu(), block.zone()).point_to(word);
            if frame < self.low_end() {
                self.leave_low_memory_unless_hinted(record, block);
            }
        }
    }

    /// Clears this CPU's cursor of a node, which was pointed to low memory, unless a hint of the CPU or of
    /// the node leads to the same pageblock. When memory above becomes free, these hints are cleared
    /// first, and then the cursors. Each of the two sides passes a `SeqCst` fence between its store and
    /// its load, so this call sees that the hint is clear, or the other side sees the cursor.
    #[cold]
    fn leave_low_memory_unless_hinted(&self, record: &NodeRecord, block: Block<'_>) {
        fence(Ordering::SeqCst); // pairs with the fence in `forget_hints`
        let (cpu, zone) = (self.frames.platform.cpu(), block.zone());
        let hints = [self.cpu.block(zone, Grain::Frame), record.hint(cpu, zone, Grain::Frame)];
        mutant!("a cursor of a node stays in low memory after the hint was cleared" => return);
        if hints.iter().all(|hint| hint.load(Ordering::SeqCst) != block.to_hint()) {
            record.cursor(cpu, zone).forget(|start| block.range().contains(start));
        }
    }

    /// Clears the cursors of all nodes that lead to memory for which `is_gone` holds.
    #[inline(never)]
    pub(super) fn forget_node_cursors(&self, is_gone: impl Fn(Pfn) -> bool) {
        let records = self.words().nodes().filter_map(|node| self.words().record(node));
        records.flat_map(NodeRecord::cursors).for_each(|cursor| cursor.forget(&is_gone));
    }

    /// Iterates over the hints of all nodes.
    pub(super) fn node_hints(&self) -> impl Iterator<Item = &'f AtomicU64> + use<'f, P> {
        let words = self.words();
        let nodes = self.frames.has_node_hints().then(|| words.nodes());
        let records = nodes.into_iter().flatten().filter_map(move |node| words.record(node));
        records.flat_map(NodeRecord::hints)
    }

    fn node_hint(&self, node: NodeIndex, zone: Zone, grain: Grain) -> Option<&'f AtomicU64> {
        Some(self.words().record(node)?.hint(self.frames.platform.cpu(), zone, grain))
    }
}
