//! Allocates one frame near a node, at the CPU's cursor of the node: the fast path.

use super::frame_or_none::FrameOrNone;
use crate::addr::{Pfn, PfnRange};
use crate::frames::{AllocError, AllocRequest, Frames};
use crate::invariant::OrRecordViolation;
use crate::platform::Platform;
use crate::words::{NodeId, Zone};

impl<P: Platform> Frames<P> {
    /// Allocates one frame at this CPU's cursor of `node`, by one read-modify-write.
    #[inline(always)]
    pub(crate) fn take_frame_near(&self, node: NodeId, zone: Zone) -> Option<Pfn> {
        self.take_at_node_cursor(node, zone).get()
    }

    #[inline(never)]
    fn take_at_node_cursor(&self, node: NodeId, zone: Zone) -> FrameOrNone {
        let Some(index) = self.words.index_of(node) else { return FrameOrNone::NONE };
        let Some(record) = self.words.record(index) else { return FrameOrNone::NONE };
        let number = self.platform.cpu();
        let last_change = &self.cpus.get_inlined(number).last_change;
        let Some(taken) = record.cursor(number, zone).take(zone, last_change) else {
            return FrameOrNone::NONE;
        };
        // The index may have been given to another node since it was looked up.
        if taken.is_on_node && self.words.is_node(index, node) {
            FrameOrNone::number(taken.frame)
        } else {
            self.put_back_frame(taken.frame)
        }
    }

    /// Allocates one frame for `request`, which is restricted to `node` and in no other way, after an
    /// attempt at the cursor of its first zone has failed: at that of its next zone, if the first one
    /// looks exhausted; otherwise by a search. Then this CPU's cursor of the node points to the frame's
    /// word.
    #[inline(never)]
    pub(in crate::frames) fn alloc_frame_near_slowly(
        &self,
        node: NodeId,
        request: AllocRequest,
    ) -> Result<PfnRange, AllocError> {
        if let &[first_zone, next_zone] = request.zones()
            && self.call().looks_exhausted(first_zone)
            && let Some(start) = self.take_frame_near(node, next_zone)
            && let Some(frame) = PfnRange::with_len(start, 1)
        {
            return Ok(frame);
        }
        let frame = self.alloc_anywhere(request)?;
        self.call().point_node_cursor(node, frame.start());
        Ok(frame)
    }

    /// Frees again a frame that the caller has just taken from a lasting bitmap.
    #[cold]
    fn put_back_frame(&self, frame: u64) -> FrameOrNone {
        let frame = Pfn::new(frame);
        let block = frame.and_then(|frame| Some((frame, self.words.block_of(frame)?)));
        if let Some((frame, block)) = block.or_record_violation() {
            let offset = block.offset_of(frame);
            self.call().put_back(block, offset..offset + 1);
        }
        FrameOrNone::NONE
    }
}
