//! Allocates up to 64 frames: a run of bits of a divided pageblock's bitmap.
//!
//! One compare-exchange takes the bits of a word, if they are set and no flag of the word forbids
//! it. A run of more than 32 frames takes bits of two words, or none.

use super::exhaustion::HidingSteps;
use super::order::SearchStep;
use super::runs::{aligned_starts, has_only_shorter_runs, runs_of};
use super::suitable::{first_suitable_frame, is_on_required_node, suits};
use super::{AllocError, AllocRequest, Frames, NodeChoice, Unit};
use crate::addr::{Pfn, PfnRange};
use crate::geometry::{BITMAP_WORD_BITS, BITMAP_WORDS, mask};
use crate::platform::Platform;
use crate::sync::{Ordering, mutant};
use crate::words::{Block, COMMON_RUN, Class, FrameBitmap, Grain, Zone, bitmap_words_of};
use core::ops::Range;

/// The number of pageblocks of its own grain that a search tries in the tree of `partial` before it
/// continues with other memory. Once a search has found a pageblock, the pageblock serves many
/// requests, so this number hardly changes the average cost of a request.
const MAX_BLOCKS: usize = 8;
/// The number of sections without pageblocks of its grain that the same search reads.
const MAX_SECTIONS: usize = 64;

impl<P: Platform> Frames<P> {
    /// Allocates `request`, for which [`is_small`](AllocRequest::is_small) holds.
    #[inline]
    pub(super) fn alloc_small(&self, request: &AllocRequest) -> Result<PfnRange, AllocError> {
        let mut first_frame = None;
        for &zone in request.zones() {
            let mut hiding_steps = self.new_hiding_steps();
            first_frame = match request.unrestricted_unit() {
                Some(Unit::Frame) => self.alloc_frame(zone),
                _ => None,
            };
            first_frame = first_frame.or_else(|| {
                self.hinted_block_for(zone, request)
                    .and_then(|block| self.take(block, request, &mut hiding_steps))
            });
            first_frame = first_frame.or_else(|| {
                self.node_block_for(zone, request)
                    .and_then(|block| self.take(block, request, &mut hiding_steps))
            });
            if first_frame.is_some() || !self.looks_exhausted(zone) {
                break;
            }
        }
        let first_frame = first_frame.map_or_else(|| self.alloc_small_slowly(request), Ok)?;
        PfnRange::with_len(first_frame, request.frames).ok_or(AllocError::OutOfMemory)
    }

    /// Returns whether the trees, the hints and the cursors lead to no free memory in this zone.
    /// Many machines have no movable memory, or none left; a movable request then continues with
    /// the next zone at once.
    ///
    /// Cost: one load per region if nothing is online in the zone. If memory is online but none is
    /// free, also a few loads per CPU, for its hints and cursors.
    pub(super) fn looks_exhausted(&self, zone: Zone) -> bool {
        if self.words.looks_empty(Class::online(zone)) {
            return true;
        }
        let free = Class::free(zone);
        self.words.looks_empty(free)
            && self.words.looks_empty(Class::partial(zone))
            && self
                .blocks_of_hints_and_cursors(zone)
                .all(|block| !self.has_takeable(block, &mut self.new_hiding_steps()))
            && self.hinted_sections(zone).all(|section| section.available(free) == 0)
    }

    /// Returns the pageblock that is this CPU's hint, unless the request prefers another node.
    #[inline]
    fn hinted_block_for(&self, zone: Zone, request: &AllocRequest) -> Option<Block<'_>> {
        let suits_node = |block: &Block<'_>| match request.node {
            None => true,
            Some(NodeChoice::Avoiding(node)) => !block.is_on(&self.words, node),
            Some(NodeChoice::Near(node) | NodeChoice::Only(node)) => {
                self.is_node_for(block.node(&self.words), node)
            }
        };
        self.this_cpus_block(zone, request.grain()).filter(suits_node)
    }

    #[cold]
    fn alloc_small_slowly(&self, request: &AllocRequest) -> Result<Pfn, AllocError> {
        self.search_all(request.zones(), |hiding_steps| {
            self.search_small(request, true, hiding_steps)
        })
    }

    /// Searches all memory, in an order that keeps the number of divided pageblocks small. Divides
    /// no pageblock if `may_divide` is false.
    #[inline(never)]
    pub(super) fn search_small(
        &self,
        request: &AllocRequest,
        may_divide: bool,
        hiding_steps: &mut HidingSteps<'_>,
    ) -> Option<Pfn> {
        hiding_steps.start();
        let grain = request.grain();
        for step in self.search_steps(request) {
            let hinted = self
                .this_cpus_block(step.zone, grain)
                .filter(|b| step.includes(&self.words, b.section()));
            // CPUs that search at the same time begin at different sections, and each CPU tends to
            // find the pageblocks that it has divided itself.
            let start = match hinted {
                Some(block) if !request.restricted => block.section().start(),
                _ => step.from,
            };
            let first_frame = hinted
                .and_then(|block| self.take(block, request, hiding_steps))
                .or_else(|| self.take_partial(step, start, request, Some(grain), hiding_steps))
                .or_else(|| match grain {
                    Grain::Frame => self.take_partial(step, start, request, None, hiding_steps),
                    Grain::Run => None,
                })
                .or_else(|| match may_divide {
                    true => self.split_for(step, request, hiding_steps),
                    false => None,
                })
                .or_else(|| {
                    self.blocks_of_hints_and_cursors(step.zone)
                        .filter(|block| step.includes(&self.words, block.section()))
                        .find_map(|block| self.take(block, request, hiding_steps))
                })
                .or_else(|| self.take_partial(step, start, request, None, hiding_steps));
            if first_frame.is_some() {
                return first_frame;
            }
        }
        None
    }

    /// Allocates from a partly free pageblock to which a tree leads. For a request of several frames,
    /// this is the tree of those pageblocks that may have runs. The search begins at `start`, and
    /// continues at `step.from` after the last section. If `grain` is given, tries at most
    /// [`MAX_BLOCKS`] pageblocks of this grain; otherwise, tries all pageblocks. The pageblock becomes
    /// this CPU's hint, unless the request is restricted.
    pub(super) fn take_partial(
        &self,
        step: SearchStep,
        start: Pfn,
        request: &AllocRequest,
        grain: Option<Grain>,
        hiding_steps: &mut HidingSteps<'_>,
    ) -> Option<Pfn> {
        let class_in = if request.frames > 1 { Class::partial_with_runs } else { Class::partial };
        let class = class_in(step.zone);
        let (mut blocks_left, mut sections_left) =
            if grain.is_some() { (MAX_BLOCKS, MAX_SECTIONS) } else { (usize::MAX, usize::MAX) };
        for section in self.search(step, class_in, request).all_round(step.from, start) {
            let partial = section.available(class);
            if partial == 0 {
                section.hide_if_empty(&self.words, class);
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
                if !suits(&self.words, block, request) {
                    continue;
                }
                // Look first: a search that passes many pageblocks without a suitable run then clears
                // the `partial` bit of none of them. A free that makes such a run meanwhile may be
                // missed, as by `take`.
                let is_run = request.frames > 1;
                let bitmap = if is_run { self.bitmap_of(block, hiding_steps) } else { None };
                let too_short = bitmap.filter(|b| has_only_shorter_runs(b, request.frames));
                if let Some(bitmap) = too_short {
                    if has_only_shorter_runs(bitmap, 2) {
                        self.hide_from_run_searches(block, bitmap, hiding_steps);
                    }
                } else {
                    hiding_steps.start();
                    // The pageblock is hidden from other searches now. `SeqCst`, as in
                    // `set_partial_with_path`: a CPU that sees the bit clear also sees that this CPU
                    // has started a hiding step. If a free saw the bit set, this CPU sees the frames
                    // that it freed.
                    let before = section.partial.fetch_and(!block.mask(), Ordering::SeqCst);
                    if before & block.mask() == 0 {
                        continue;
                    }
                    if let Some(first_frame) = self.take(block, request, hiding_steps) {
                        if request.restricted {
                            self.set_partial_if_takeable(block, hiding_steps);
                            self.set_node_hint(block, step.zone, request, hiding_steps);
                        } else {
                            block.set_grain(request.grain());
                            self.set_block_hint(block, step.zone, request.grain(), hiding_steps);
                        }
                        return Some(first_frame);
                    }
                    mutant!("no second look after partial was cleared" => continue);
                    self.set_partial_if_takeable(block, hiding_steps);
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

    /// Claims a free pageblock, divides it and allocates from it. The pageblock becomes this CPU's
    /// hint, unless the request is restricted.
    pub(super) fn split_for(
        &self,
        step: SearchStep,
        request: &AllocRequest,
        hiding_steps: &mut HidingSteps<'_>,
    ) -> Option<Pfn> {
        hiding_steps.start();
        let block = self.claim_one(step, request, hiding_steps)?;
        let first = first_suitable_frame(block, request).unwrap_or(0);
        block.set_grain(request.grain());
        #[allow(clippy::cast_possible_truncation, reason = "small")]
        self.divide(block, first..first + request.frames as usize, hiding_steps);
        if request.restricted {
            self.set_partial_if_takeable(block, hiding_steps);
            self.set_node_hint(block, step.zone, request, hiding_steps);
        } else {
            self.set_block_hint(block, step.zone, request.grain(), hiding_steps);
        }
        block.start().checked_add(first as u64)
    }

    /// Makes a pageblock findable by its `partial` bit, if some of its frames may be taken.
    pub(super) fn set_partial_if_takeable(
        &self,
        block: Block<'_>,
        hiding_steps: &mut HidingSteps<'_>,
    ) {
        if self.has_takeable(block, hiding_steps) {
            self.set_partial_with_path(block);
        }
    }

    /// Returns whether some frames of a pageblock may be taken.
    pub(super) fn has_takeable(
        &self,
        block: Block<'_>,
        hiding_steps: &mut HidingSteps<'_>,
    ) -> bool {
        self.bitmap_of(block, hiding_steps).is_some_and(FrameBitmap::has_takeable)
    }

    /// Returns the number of frames of a pageblock that may be taken. This is a snapshot.
    pub(super) fn takeable(&self, block: Block<'_>) -> u64 {
        self.with_bitmap(block, |bitmap| bitmap.map_or(0, FrameBitmap::takeable))
    }

    /// Takes a suitable run of free frames for `request` out of `block`, if there is one.
    pub(super) fn take(
        &self,
        block: Block<'_>,
        request: &AllocRequest,
        hiding_steps: &mut HidingSteps<'_>,
    ) -> Option<Pfn> {
        let any_frame = request.unrestricted_unit() == Some(Unit::Frame);
        if !any_frame {
            if !suits(&self.words, block, request) {
                return None;
            }
            // Count a hiding step: if a part of a run is put back below, searches could not find it
            // until then.
            hiding_steps.start();
        }
        let bitmap = self.bitmap_of(block, hiding_steps)?;
        let first = if any_frame {
            bitmap.take_any()?
        } else {
            self.take_run(block, bitmap, request, hiding_steps)?
        };
        if self.is_in_wrong_place(block, request) {
            #[allow(clippy::cast_possible_truncation, reason = "small")]
            self.put_back(block, first..first + request.frames as usize, hiding_steps);
            return None;
        }
        block.start().checked_add(first as u64)
    }

    /// Returns whether the request does not accept the zone or the node of `block`. The pageblock
    /// may have changed its zone and node since it became a hint. They do not change while a frame
    /// of the pageblock is allocated.
    #[inline]
    fn is_in_wrong_place(&self, block: Block<'_>, request: &AllocRequest) -> bool {
        !request.zones().contains(&block.zone())
            || !is_on_required_node(&self.words, block, request.only_node())
    }

    /// Frees again the frames that the caller has just taken from the bitmap.
    #[cold]
    pub(super) fn put_back(
        &self,
        block: Block<'_>,
        frames: Range<usize>,
        hiding_steps: &mut HidingSteps<'_>,
    ) {
        hiding_steps.start();
        for (word, bits) in bitmap_words_of(frames) {
            self.put_back_bits(block, word, bits, hiding_steps);
        }
    }

    /// Takes the lowest suitable run of free frames, and returns its first frame.
    fn take_run(
        &self,
        block: Block<'_>,
        bitmap: &FrameBitmap,
        request: &AllocRequest,
        hiding_steps: &mut HidingSteps<'_>,
    ) -> Option<usize> {
        #[allow(clippy::cast_possible_truncation, reason = "small")]
        let frames = request.frames as usize;
        let align = usize::try_from(request.align).unwrap_or(usize::MAX);
        let limit = request.upper_bound.number().saturating_sub(block.start().number());
        let first_allowed = first_suitable_frame(block, request)?;
        let frames_in_word = frames.min(BITMAP_WORD_BITS);
        for i in 0..BITMAP_WORDS {
            let base = i * BITMAP_WORD_BITS;
            let above = !mask(first_allowed.saturating_sub(base));
            loop {
                let free = bitmap.takeable_in(i);
                let starts = runs_of(free, frames_in_word) & aligned_starts(base, align) & above;
                let first = base + starts.trailing_zeros() as usize;
                if starts == 0 || (first + frames) as u64 > limit {
                    break;
                }
                let (bits, frames_in_next) =
                    (mask(frames_in_word) << (first - base), frames - frames_in_word);
                if frames_in_next > 0
                    && (i + 1 == BITMAP_WORDS
                        || bitmap.takeable_in(i + 1) & mask(frames_in_next) != mask(frames_in_next))
                {
                    break;
                }
                if !bitmap.take(i, bits) {
                    continue;
                }
                if frames_in_next == 0 || bitmap.take(i + 1, mask(frames_in_next)) {
                    return Some(first);
                }
                self.put_back_bits(block, i, bits, hiding_steps);
            }
        }
        None
    }

    pub(crate) fn new_hiding_steps(&self) -> HidingSteps<'_> {
        HidingSteps::new(self.listed_cpu())
    }
}
