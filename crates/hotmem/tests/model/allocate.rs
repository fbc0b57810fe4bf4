//! Allocates and frees, and compares each result with the model.

use crate::lifecycle::NODES;
use crate::machine::Machine;
use crate::model::{BOOT_OWNER, CHECK_EVERY_OPERATION, FrameState, Model, SIZE, TABLES_OWNER, Tag};
use crate::model_request::ModelRequest;
use hotmem::{
    AllocError, Contents, NodeChoice, NodeId, PfnRange, RangeError, RangeErrorKind, Zone,
};
use hotmem_testkit::RawRanges as _;
use hotmem_testkit::{BITMAP_WORD_FRAMES, PAGEBLOCK, SECTION, numbers, pfn, range};
use std::sync::atomic::Ordering;

impl Model<'_> {
    /// Makes a request, checks the result, and records the allocation in the model.
    pub(crate) fn alloc(&mut self, request: &ModelRequest) -> Option<PfnRange> {
        let first_choice = if CHECK_EVERY_OPERATION { self.first_choice(request) } else { None };
        let parked = self.parked.clone();
        // Every second request asks what its frames contain.
        let answer = match self.next_owner % 2 {
            0 => self.alloc_and_check_contents(request),
            _ => self.frames.alloc_range(request.alloc_request()),
        };
        self.trace(|| format!("alloc {request:?}: {answer:?}"));
        let added = self.count_new_metadata();
        // A call that takes back the memory of a request divides the pageblocks with poisoned frames.
        let may_add =
            parked.iter().any(|range| !self.parked.contains(range) && self.has_poison(*range));
        let added = if may_add { 0 } else { added };
        let Ok(allocated) = answer.map_err(|error| self.check_refused(request, error, added))
        else {
            return None;
        };
        assert_eq!((request.expected_error(), allocated.frames()), (None, request.frames));
        assert!(
            allocated.start().number().is_multiple_of(request.align)
                && allocated.end() <= pfn(request.below),
            "{allocated:?}"
        );
        assert!(request.at.is_none_or(|at| allocated.start() == pfn(at)), "{allocated:?}");
        assert!(
            numbers(allocated).all(|f| self.is_free_for(f, request)),
            "{allocated:?} was not free for {request:?}"
        );
        if let Some((node, zone)) = first_choice {
            self.check_choice(allocated, request, node, zone);
        }
        self.next_owner += 1;
        self.record_allocation(allocated, Tag { owner: self.next_owner, movable: request.movable });
        Some(allocated)
    }

    /// Writes zeroes to memory, as a host does before it gives the memory to the guest.
    pub(crate) fn zero(&self, range: PfnRange) {
        let words = numbers(range).flat_map(|frame| self.memory.cells(frame));
        words.for_each(|word| word.store(0, Ordering::Relaxed));
    }

    /// Writes zeroes to memory that was added as zero, when it comes online: until then, it has the
    /// marks by which the model notices accesses.
    pub(crate) fn zero_new(&mut self, onlined: PfnRange) {
        for part in onlined.chunks(PAGEBLOCK) {
            if std::mem::take(&mut self.blocks_in(part)[0].is_new_zero) {
                let is_free = |&frame: &u64| self.frame_states[frame as usize] == FrameState::Free;
                numbers(part).filter(is_free).for_each(|frame| self.zero(range(frame, 1)));
            }
        }
    }

    /// Makes a request, and checks that frames which the engine knows to be zero are zero.
    fn alloc_and_check_contents(&self, request: &ModelRequest) -> Result<PfnRange, AllocError> {
        let (allocation, contents) = self.frames.alloc_with_contents(request.alloc_request())?;
        let allocated = allocation.into_raw();
        if contents != Contents::Undefined {
            let mut words = numbers(allocated).flat_map(|frame| self.memory.words(frame));
            assert!(contents == Contents::Filled(0) && words.all(|word| word == 0), "{allocated}");
        }
        Ok(allocated)
    }

    /// Checks that the frames come from the node and zone that the request prefers.
    fn check_choice(&self, allocated: PfnRange, request: &ModelRequest, node: NodeId, zone: Zone) {
        let start = allocated.start().number();
        let actual = (self.node_of(start), self.block_of(start).movable == (zone == Zone::Movable));
        match request.node {
            // The frames may come from any node but `avoided`, because the CPU's hint is tried
            // first.
            Some(NodeChoice::Avoiding(avoided)) => {
                assert_eq!(actual.0 == Some(avoided), node == avoided, "{request:?}");
            }
            _ => assert_eq!(actual, (Some(node), true), "{request:?}: {node:?} {zone:?}"),
        }
    }

    fn check_refused(&self, request: &ModelRequest, error: AllocError, metadata_added: usize) {
        match error {
            AllocError::Bad(bad_request) => {
                assert_eq!(Some(bad_request), request.expected_error(), "{request:?}")
            }
            AllocError::NotFree(not_free) => {
                let place = range(
                    request.at.expect("only a request for an exact place fails with NotFree"),
                    request.frames,
                );
                assert_eq!(Some(not_free), self.first_not_free(place, request), "{request:?}");
            }
            AllocError::OutOfMemory => {
                assert!(request.expected_error().is_none() && request.at.is_none(), "{request:?}");
                assert!(!self.can_grant(request), "{request:?} failed although its memory is free");
                let is_no_use =
                    |&range| self.all_blocks_are(range, |block| block.movable && !request.movable);
                assert!(
                    self.parked.iter().all(is_no_use),
                    "{request:?} failed although a request that waits has memory"
                );
                assert!(
                    !self.is_reported_memory_needed(request),
                    "{request:?} must fail with Busy while memory is reporting"
                );
            }
            // With one thread, the engine is busy only while memory is reporting.
            AllocError::Busy => assert!(self.is_reported_memory_needed(request), "{request:?}"),
        }
        assert_eq!(metadata_added, 0, "a refusal of {request:?} changed the machine");
    }

    /// Returns whether memory of a zone that the request may use is reporting.
    pub(crate) fn is_reported_memory_needed(&self, request: &ModelRequest) -> bool {
        self.blocks.iter().any(|block| block.reporting && (request.movable || !block.movable))
    }

    /// Records an allocation in the model, and writes the owner's tag to the first word of each
    /// frame. The engine keeps links in frames for page tables until the kernel takes them, so these
    /// are not written.
    pub(crate) fn record_allocation(&mut self, allocated: PfnRange, tag: Tag) {
        for frame in numbers(allocated) {
            assert_eq!(
                self.frame_states[frame as usize],
                FrameState::Free,
                "frame {frame:#x} for {tag:?}"
            );
            self.frame_states[frame as usize] = FrameState::Used(tag);
            self.blocks[(frame / PAGEBLOCK) as usize].is_reported = false;
            if tag.owner != TABLES_OWNER {
                self.memory.word(frame).store(tag.owner, Ordering::Relaxed);
            }
        }
    }

    /// Frees frames, and checks the result and that each frame still has its owner's tag.
    pub(crate) fn free(&mut self, freed: PfnRange) {
        let expected = self.expected_free_error(freed);
        if expected.is_none() {
            self.record_free(freed);
        }
        let answer = self.frames.free_range(freed);
        self.trace(|| format!("free {freed:?}: {answer:?}"));
        assert_eq!(answer, expected.map_or(Ok(()), Err), "free {freed:?}");
        let added = self.count_new_metadata();
        assert!(answer.is_ok() || added == 0, "a refused free changed the machine");
    }

    /// Records a free in the model. Call this before the engine frees the range, because the engine
    /// may use the frames for metadata at once.
    pub(crate) fn record_free(&mut self, freed: PfnRange) {
        for frame in numbers(freed) {
            let FrameState::Used(tag) = self.frame_states[frame as usize] else {
                panic!("{frame:#x} is free")
            };
            let word = self.memory.word(frame).load(Ordering::Relaxed);
            assert!(tag.owner == TABLES_OWNER || word == tag.owner, "{frame:#x}");
            let is_poisoned = self.poisoned_frames.contains(&frame);
            self.frame_states[frame as usize] =
                if is_poisoned { FrameState::Poisoned } else { FrameState::Free };
        }
    }

    fn expected_free_error(&self, freed: PfnRange) -> Option<RangeError> {
        let refused = |range, kind| Some(RangeError { range, kind });
        if freed.is_empty() {
            return refused(freed, RangeErrorKind::Empty);
        }
        if !self.regions.iter().any(|region| region.range.covers(freed)) {
            return refused(freed, RangeErrorKind::Foreign);
        }
        freed.chunks(PAGEBLOCK).find_map(|block_range| {
            if !self.block_of(block_range.start().number()).online {
                return refused(block_range, RangeErrorKind::Foreign);
            }
            let is_used = |frame| matches!(self.frame_states[frame as usize], FrameState::Used(_));
            let all_used = numbers(block_range).all(is_used);
            if !all_used { refused(block_range, RangeErrorKind::NotAllocated) } else { None }
        })
    }

    /// Returns a random run of frames with one owner.
    fn random_used(&mut self) -> Option<(PfnRange, Tag)> {
        let start = self.rng.u64(..SIZE);
        let tag_of = |frame: u64| match self.frame_states[frame as usize] {
            FrameState::Used(tag) if tag.owner != TABLES_OWNER => Some(tag),
            _ => None,
        };
        let first = (start..SIZE).chain(0..start).find(|&frame| tag_of(frame).is_some())?;
        let tag = tag_of(first)?;
        let has_same_tag = |frame: &u64| tag_of(*frame) == Some(tag);
        let below = (0..first).rev().take_while(has_same_tag).count() as u64;
        let above = (first..SIZE).take_while(has_same_tag).count() as u64;
        Some((range(first - below, below + above), tag))
    }

    pub(crate) fn random_allocation(&mut self) -> ModelRequest {
        let rng = &mut self.rng;
        let frames = match rng.u32(..100) {
            0..55 => 1,
            55..70 => rng.u64(1..=BITMAP_WORD_FRAMES),
            70..80 => rng.u64(1..=PAGEBLOCK),
            80..92 => PAGEBLOCK * rng.u64(1..=3),
            92..98 => rng.u64(PAGEBLOCK..=SECTION),
            _ => rng.u64(SECTION..4 * SECTION),
        };
        let mut request =
            ModelRequest { movable: rng.u8(..10) < 7, ..ModelRequest::frames(frames) };
        if rng.u8(..4) == 0 {
            request.align = 1 << rng.u32(..=SECTION.ilog2() + 1);
        }
        if rng.u8(..6) == 0 {
            request.below = rng.u64(..=SIZE);
        }
        if rng.u8(..8) == 0 {
            let at = rng.u64(..SIZE);
            request.at = Some(at - at % request.align);
        } else if rng.u8(..8) == 0 {
            let node = NODES[rng.usize(..NODES.len())];
            let choices = [NodeChoice::Near, NodeChoice::Only, NodeChoice::Avoiding];
            request.node = Some(choices[rng.usize(..3)](node));
        }
        request
    }
}

impl Machine<'_> {
    pub(crate) fn allocate_or_free(&mut self) {
        let model = &mut self.model;
        let allocate = model.rng.u8(..100) < self.profile.allocations[usize::from(self.is_filling)];
        if allocate {
            let request = model.random_allocation();
            model.alloc(&request);
        } else if let Some((used, tag)) = model.random_used() {
            // Free frames that boot reserved in parts, so that some of them stay longer.
            let in_part = tag.owner == BOOT_OWNER || model.rng.u8(..3) == 0;
            let part = if in_part { model.random_part(used) } else { used };
            model.free(part);
        }
    }

    /// Frees a random range, if the engine must refuse that: free frames, frames that are not
    /// online, or an empty range.
    pub(crate) fn bad_free(&mut self) {
        let model = &mut self.model;
        let start = model.rng.u64(..SIZE + SECTION);
        let len = if model.rng.bool() { 1 } else { model.rng.u64(..3 * PAGEBLOCK) };
        let freed = range(start, len);
        let states = &self.model.frame_states;
        let states: Vec<_> =
            numbers(freed).filter_map(|f| states.get(f as usize)).copied().collect();
        let has_used = states.iter().any(|state| matches!(state, FrameState::Used(_)));
        // The engine does not refuse to free holes and metadata, so the test must not free them.
        let has_unchecked =
            states.iter().any(|state| matches!(state, FrameState::Hole | FrameState::Metadata));
        if !has_unchecked && (!has_used || states.contains(&FrameState::Free)) {
            self.model.free(freed);
        }
    }
}

impl Model<'_> {
    pub(crate) fn random_part(&mut self, outer: PfnRange) -> PfnRange {
        let first = self.rng.u64(..outer.frames());
        let len = self.rng.u64(1..=outer.frames() - first);
        range(outer.start().number() + first, len)
    }
}
