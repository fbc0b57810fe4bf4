//! Allocates up to 64 frames: a run of bits in one word of a divided pageblock's bitmap.
//!
//! An allocation first takes a *credit*: it lowers the count in the pageblock's block state by n.
//! Then it clears the bits: by the invariant of the block state, at least as many bits are set as
//! credits were granted. One frame needs no more than that. For several frames, the run is found
//! with the credit in hand, and the credit is given back if there is no run.

use super::exhaustion::Moves;
use super::order::Place;
use super::{AllocError, AllocRequest, Frames, Unit};
use crate::addr::{Pfn, PfnRange};
use crate::geometry::{BITMAP_WORD_BITS, PAGEBLOCK_FRAMES, mask};
use crate::platform::Platform;
use crate::sync::{Ordering, mutant};
use crate::words::{Block, Class, Edge, FrameBitmap, Given, NodeId, Zone};

/// The number of pageblocks in `partial` that a search for several frames tries before it divides a
/// free pageblock.
const PROBES: usize = 8;

impl<P: Platform> Frames<P> {
    /// Allocates one frame from this CPU's pageblock by two read-modify-writes: the fast path.
    #[inline]
    pub(super) fn alloc_frame(&self, zone: Zone) -> Option<Pfn> {
        let block = self.own_block(zone)?;
        if !block.state.credit(1) {
            return None;
        }
        match block.bitmap() {
            Some(bitmap) if block.zone() == zone => {
                block.start().checked_add(bitmap.take_any() as u64)
            }
            _ => {
                self.give_credit(&block, 1, &mut self.no_moves_yet());
                None
            }
        }
    }

    /// Allocates `request`, for which [`is_small`](AllocRequest::is_small) holds.
    #[inline]
    pub(super) fn alloc_small(&self, request: &AllocRequest) -> Result<PfnRange, AllocError> {
        let mut taken = None;
        for &zone in request.zones() {
            let mut moves = self.no_moves_yet();
            taken = self
                .own_choice(zone, request)
                .and_then(|block| self.take(&block, request, &mut moves));
            if taken.is_some() || !self.looks_barren(zone) {
                break;
            }
        }
        let taken = taken.map_or_else(|| self.alloc_small_slowly(request), Ok)?;
        PfnRange::with_len(taken, request.len()).ok_or(AllocError::OutOfMemory)
    }

    /// Returns whether neither the trees nor the hints lead to free memory in this zone. Many
    /// machines have no movable memory, or none left; a movable request then continues with the
    /// next zone at once.
    ///
    /// Cost: one load per region if nothing is online in the zone. If memory is online but none is
    /// free, a few loads per CPU as well, because each CPU's hints may name free memory.
    pub(super) fn looks_barren(&self, zone: Zone) -> bool {
        if self.words.looks_empty(Class::online(zone)) {
            return true;
        }
        let free = Class::free(zone);
        self.words.looks_empty(free)
            && self.words.looks_empty(Class::partial(zone))
            && self.hinted_blocks(zone).all(|block| !can_credit(&block, 1))
            && self.hinted_sections(zone).all(|section| section.available(free) == 0)
    }

    /// Returns the CPU's own pageblock, unless the request prefers another node.
    #[inline]
    fn own_choice(&self, zone: Zone, request: &AllocRequest) -> Option<Block<'_>> {
        let is_meant = |block: &Block<'_>| match request.preferred_node() {
            None => true,
            Some(node) if request.is_leaving() => !block.is_on(node),
            Some(node) => self.is_meant(block.node(), node),
        };
        self.own_block(zone).filter(is_meant)
    }

    #[cold]
    fn alloc_small_slowly(&self, request: &AllocRequest) -> Result<Pfn, AllocError> {
        self.search_all(request.zones(), |moves| self.search_small(request, moves))
    }

    /// Searches all memory, in the order that keeps the number of divided pageblocks small.
    pub(super) fn search_small(
        &self,
        request: &AllocRequest,
        moves: &mut Moves<'_>,
    ) -> Option<Pfn> {
        moves.start();
        let probes = if request.len() == 1 { usize::MAX } else { PROBES };
        self.places(request).find_map(|place| {
            let own = self.own_block(place.zone).filter(|b| place.includes(b.section));
            own.and_then(|block| self.take(&block, request, moves))
                .or_else(|| self.take_partial(place, request, probes, moves))
                .or_else(|| self.split_for(place, request, moves))
                .or_else(|| {
                    self.hinted_blocks(place.zone)
                        .filter(|block| place.includes(block.section))
                        .find_map(|block| self.take(&block, request, moves))
                })
                .or_else(|| self.take_partial(place, request, usize::MAX, moves))
        })
    }

    /// Allocates from a pageblock that the tree of `partial` leads to. It becomes this CPU's
    /// hint, unless the request is picky.
    pub(super) fn take_partial(
        &self,
        place: Place,
        request: &AllocRequest,
        mut probes: usize,
        moves: &mut Moves<'_>,
    ) -> Option<Pfn> {
        let class = Class::partial(place.zone);
        for section in self.search(place, Class::partial, request).all_from(place.from) {
            let partial = section.available(class);
            if partial == 0 {
                section.hide_if_empty(class);
            }
            for block in section.blocks(partial) {
                if !suits(&block, request) {
                    continue;
                }
                moves.start();
                // From here on, this CPU softly owns the pageblock. AcqRel: pairs with
                // `show_partial`; and a CPU that sees the bit clear also sees that a move was
                // started.
                let was = section.partial.fetch_and(!block.mask(), Ordering::AcqRel);
                if was & block.mask() == 0 {
                    continue;
                }
                if let Some(taken) = self.take(&block, request, moves) {
                    if request.is_picky() {
                        self.show_partial_if_any(&block);
                    } else {
                        self.adopt_block(&block, place.zone, moves);
                    }
                    return Some(taken);
                }
                mutant!("no second look after partial was cleared" => continue);
                self.show_partial_if_any(&block);
                probes -= 1;
                if probes == 0 {
                    return None;
                }
            }
        }
        None
    }

    /// Claims a free pageblock, divides it and allocates from it. It becomes this CPU's hint,
    /// unless the request is picky.
    fn split_for(
        &self,
        place: Place,
        request: &AllocRequest,
        moves: &mut Moves<'_>,
    ) -> Option<Pfn> {
        moves.start();
        let block = self.claim_one(place, request, moves)?;
        let first = first_in(&block, request).unwrap_or(0);
        #[allow(clippy::cast_possible_truncation, reason = "small")]
        self.divide(&block, first..first + request.len() as usize, moves);
        if request.is_picky() {
            self.show_partial_if_any(&block);
        } else {
            self.adopt_block(&block, place.zone, moves);
        }
        block.start().checked_add(first as u64)
    }

    pub(super) fn show_partial_if_any(&self, block: &Block<'_>) {
        if block.state.load().grantable() > 0 {
            self.show_partial(block);
        }
    }

    /// Takes a run of free frames for `request` out of `block`, if it has one.
    ///
    /// The bitmap is read only with a credit in hand: without a credit, the bitmap could be dropped
    /// and its memory unmapped. A credit for several frames that finds no run hides them from other
    /// CPUs for a moment.
    pub(super) fn take(
        &self,
        block: &Block<'_>,
        request: &AllocRequest,
        moves: &mut Moves<'_>,
    ) -> Option<Pfn> {
        #[allow(clippy::cast_possible_truncation, reason = "small")]
        let frames = request.len() as u16;
        let any_frame = request.is_any() == Some(Unit::Frame);
        if !any_frame {
            if !suits(block, request) || !can_credit(block, frames) {
                return None;
            }
            moves.start();
        }
        if !block.state.credit(frames) {
            return None;
        }
        let taken = if self.wrong_place(block, request) {
            None
        } else if any_frame {
            block.bitmap().map(FrameBitmap::take_any)
        } else {
            block.bitmap().and_then(|bitmap| take_run(block, bitmap, request))
        };
        if taken.is_none() {
            self.give_credit(block, frames, moves);
        }
        block.start().checked_add(taken? as u64)
    }

    /// Returns whether `block` is in a zone or on a node that the request excludes. A hint may be
    /// older than the pageblock's zone and node; once a credit is held, neither changes.
    #[inline]
    fn wrong_place(&self, block: &Block<'_>, request: &AllocRequest) -> bool {
        !request.zones().contains(&block.zone()) || !is_where(block, request.only_node())
    }

    /// Gives back a credit whose frames were not found, by the path of a free, because it may
    /// complete the pageblock.
    #[inline]
    pub(super) fn give_credit(&self, block: &Block<'_>, frames: u16, moves: &mut Moves<'_>) {
        self.give(block, frames, true, moves);
    }

    /// Calls [`AtomicBlockState::give`](crate::words::AtomicBlockState::give), then does what its
    /// result requires.
    #[inline]
    pub(super) fn give(
        &self,
        block: &Block<'_>,
        frames: u16,
        honest: bool,
        moves: &mut Moves<'_>,
    ) -> Option<Given> {
        let cpu = moves.cpu();
        let is_own = || cpu.block(block.zone()).load(Ordering::Relaxed) == block.hint();
        let mut kept = false;
        let given = block.state.give(frames, honest, |edge| {
            // The pageblock stays divided while it is this CPU's own hint: a CPU that is alone in
            // its pageblock would otherwise claim and coalesce it on each pair of an allocation and
            // a free.
            mutant!("the last free is like any other" => return true);
            kept = edge == Edge::Last && is_own();
            if !kept {
                moves.start();
            }
            kept
        });
        match given {
            None | Some(Given::Poisoned) => {}
            Some(Given::Some) if kept && !is_own() => self.coalesce_kept(block, moves),
            Some(Given::Some | Given::Drained) => {}
            Some(Given::First) => self.show_block(block, moves),
            Some(Given::Last) => self.show_coalesced(block, moves),
        }
        given
    }

    /// Retires a pageblock that was left divided because it was this CPU's hint. Since then the
    /// hint has changed, and the code that changed it saw no reason to coalesce.
    #[cold]
    pub(super) fn coalesce_kept(&self, block: &Block<'_>, moves: &mut Moves<'_>) {
        mutant!("no second look at the hint" => return);
        moves.start();
        self.retire_block(block.hint(), moves);
    }

    pub(crate) fn no_moves_yet(&self) -> Moves<'_> {
        Moves::none_yet(self.seen_cpu())
    }
}

fn can_credit(block: &Block<'_>, frames: u16) -> bool {
    block.state.load().grantable() >= frames
}

/// Returns whether the pageblock can hold the request: its bounds, alignment, node, and boot
/// memory.
pub(super) fn suits(block: &Block<'_>, request: &AllocRequest) -> bool {
    let start = block.start();
    let first = first_in(block, request).and_then(|first| start.checked_add(first as u64));
    let end = first.and_then(|first| first.checked_add(request.len()));
    end.is_some_and(|end| end <= request.bound())
        && (request.alignment() <= PAGEBLOCK_FRAMES as u64 || start.is_aligned(request.alignment()))
        && (!request.wants_fixed() || block.is_fixed())
        && request.only_node().is_none_or(|node| block.is_on(node))
}

/// Returns the first frame of the pageblock at which the request may begin, if there is one.
fn first_in(block: &Block<'_>, request: &AllocRequest) -> Option<usize> {
    let below = request.least().number().saturating_sub(block.start().number());
    if below == 0 {
        return Some(0);
    }
    // A request for more than 64 frames begins at a pageblock.
    let align = if request.is_small() { request.alignment() } else { PAGEBLOCK_FRAMES as u64 };
    let first = below.checked_next_multiple_of(align)?;
    let fits = first.checked_add(request.len())? <= PAGEBLOCK_FRAMES as u64;
    usize::try_from(first).ok().filter(|_| fits)
}

/// Returns whether a pageblock is on the node that the request requires.
#[inline]
pub(super) fn is_where(block: &Block<'_>, only_on: Option<NodeId>) -> bool {
    mutant!("a claim does not look at the node again" => return true);
    only_on.is_none_or(|node| block.is_on(node))
}

/// Takes the lowest suitable run of free frames. The caller holds credits for it.
fn take_run(block: &Block<'_>, bitmap: &FrameBitmap, request: &AllocRequest) -> Option<usize> {
    #[allow(clippy::cast_possible_truncation, reason = "small")]
    let frames = request.len() as usize;
    let align = usize::try_from(request.alignment()).unwrap_or(usize::MAX);
    let limit = request.bound().number().saturating_sub(block.start().number());
    let first = first_in(block, request)?;
    bitmap.words().iter().enumerate().find_map(|(i, word)| {
        let base = i * BITMAP_WORD_BITS;
        loop {
            let free = word.load(Ordering::Relaxed);
            let above = !mask(first.saturating_sub(base));
            let starts = runs_of(free, frames) & aligned_starts(base, align) & above;
            let at = starts.trailing_zeros() as usize;
            if starts == 0 || (base + at + frames) as u64 > limit {
                return None;
            }
            if bitmap.take(i, mask(frames) << at) {
                return Some(base + at);
            }
        }
    })
}

/// Returns the bits at which a run of `n` set bits starts, by doubling shift-and.
pub(super) fn runs_of(mut word: u64, n: usize) -> u64 {
    let mut have = 1;
    while have < n && word != 0 {
        let step = have.min(n - have);
        word &= word >> step;
        have += step;
    }
    word
}

/// Returns the bits, in the word from position `base` on, whose positions are multiples of `align`.
pub(super) fn aligned_starts(base: usize, align: usize) -> u64 {
    if align >= 64 {
        return u64::from(base.is_multiple_of(align));
    }
    // One set bit every `align` bits: the 64-bit word of all ones, divided by `align` ones.
    let pattern = if align == 1 { u64::MAX } else { u64::MAX / mask(align) };
    // Word sizes below 64 occur in tests only; there, `base` may be no multiple of `align`.
    pattern << ((align - base % align) % align)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_and_alignment_agree_with_brute_force() {
        for word in [0, 1, u64::MAX, 0xf0f0, 0b1011_1011_1111, 0x8000_0000_0000_0001] {
            for n in 1..=64 {
                let brute = (0..64usize).filter(|&i| i + n <= 64 && word >> i & mask(n) == mask(n));
                assert_eq!(
                    runs_of(word, n),
                    brute.fold(0, |bits, i| bits | 1 << i),
                    "{word:x} {n}"
                );
            }
        }
        for align in (0..12).map(|order| 1usize << order) {
            for base in [0usize, 8, 64, 128, 192, 448] {
                let brute = (0..64).filter(|i| (base + i) % align == 0);
                let brute = brute.fold(0u64, |bits, i| bits | 1 << i);
                let word_bits = if align >= 64 { brute & 1 } else { brute };
                assert_eq!(aligned_starts(base, align), word_bits, "{base} {align}");
            }
        }
    }
}
