//! Allocates from the partly free pageblocks to which the trees lead.

use crate::addr::Pfn;
use crate::frames::order::SearchStep;
use crate::frames::runs::has_only_shorter_runs;
use crate::frames::suitable::suits;
use crate::frames::{AllocRequest, CallContext};
use crate::platform::Platform;
use crate::sync::{Ordering, mutant};
use crate::words::{Block, COMMON_RUN, Class, Grain};

/// The number of pageblocks of its own grain that a search tries in the tree of `partial` before it
/// continues with other memory. Once a search has found a pageblock, the pageblock serves many
/// requests, so this number hardly changes the average cost of a request.
const MAX_BLOCKS: usize = 8;
/// The number of sections without pageblocks of its grain that the same search reads.
const MAX_SECTIONS: usize = 64;

impl<P: Platform> CallContext<'_, P> {
    /// Allocates from a partly free pageblock to which a tree leads. For a request of several frames,
    /// this is the tree of those pageblocks that may have runs. The search begins at `start`, and
    /// continues at `step.from` after the last section. If `grain` is given, tries at most
    /// [`MAX_BLOCKS`] pageblocks of this grain; otherwise, tries all pageblocks. The pageblock becomes
    /// this CPU's hint, unless the request is restricted.
    pub(in crate::frames) fn take_partial(
        &self,
        step: SearchStep,
        start: Pfn,
        request: &AllocRequest,
        grain: Option<Grain>,
    ) -> Option<Pfn> {
        let class_in = if request.frames > 1 { Class::partial_with_runs } else { Class::partial };
        let class = class_in(step.zone);
        let (mut blocks_left, mut sections_left) =
            if grain.is_some() { (MAX_BLOCKS, MAX_SECTIONS) } else { (usize::MAX, usize::MAX) };
        for section in self.search(step, class_in, request).all_round(step.from, start) {
            let partial = section.available(class);
            if partial == 0 {
                section.hide_if_empty(self.words(), class);
            }
            let candidates =
                grain.map_or(partial, |grain| partial & section.blocks_of_grain(grain));
            if candidates == 0 {
                sections_left -= 1;
                if sections_left == 0 {
                    return None;
                }
            }
            for block in section.blocks(candidates) {
                if !suits(self.words(), block, request) {
                    continue;
                }
                // Look first: a search that passes many pageblocks without a suitable run then clears
                // the `partial` bit of none of them. A free that makes such a run meanwhile may be
                // missed, as by `take`.
                let is_run = request.frames > 1;
                let bitmap = if is_run { self.bitmap_of(block) } else { None };
                let too_short = bitmap.filter(|b| has_only_shorter_runs(b, request.frames));
                if let Some(bitmap) = too_short {
                    self.hide_from_run_searches(block, bitmap);
                } else {
                    self.start_hiding();
                    // The pageblock is hidden from other searches now. `SeqCst`, as in
                    // `set_partial_with_path`: a CPU that sees the bit clear also sees that this CPU
                    // has started a hiding step. If a free saw the bit set, this CPU sees the frames
                    // that it freed.
                    let before = section.partial.fetch_and(!block.mask(), Ordering::SeqCst);
                    if before & block.mask() == 0 {
                        continue;
                    }
                    if let Some(first_frame) = self.take_suitable(block, request) {
                        if request.restricted {
                            self.set_partial_if_takeable(block);
                            self.set_node_hint(block, step.zone, request);
                        } else {
                            block.set_grain(request.grain());
                            self.set_block_hint(block, step.zone, request.grain());
                        }
                        return Some(first_frame);
                    }
                    mutant!("no second look after partial was cleared" => continue);
                    self.set_partial_if_takeable(block);
                }
                if request.frames <= COMMON_RUN.into() {
                    block.set_grain(Grain::Frame);
                }
                blocks_left -= 1;
                if blocks_left == 0 {
                    return None;
                }
            }
        }
        None
    }

    /// Makes a pageblock findable by its `partial` bit, if some of its frames may be taken.
    pub(in crate::frames) fn set_partial_if_takeable(&self, block: Block<'_>) {
        if self.has_takeable(block) {
            self.set_partial_with_path(block);
        }
    }
}
