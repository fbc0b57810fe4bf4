//! Allocates and frees, and compares each result with the model.

use crate::ask::Ask;
use crate::lifecycle::NODES;
use crate::world::{BOOT, Frame, LOOK_CLOSELY, Machine, SIZE, TABLES, Tag, World};
use hotmem::{AllocError, NodeChoice, NodeId, PfnRange, RangeError, RangeErrorKind, Zone};
use hotmem_testkit::Raw as _;
use hotmem_testkit::RawReserved as _;
use hotmem_testkit::{BLOCK, SECTION, WORD, numbers, pfn, range};
use std::sync::atomic::Ordering;

impl World<'_> {
    /// Makes a request, checks the result, and records the allocation in the model.
    pub(crate) fn alloc(&mut self, ask: &Ask) -> Option<PfnRange> {
        let first_choice = if LOOK_CLOSELY { self.first_choice(ask) } else { None };
        let answer = self.frames.take_raw(ask.request());
        self.tell(|| format!("alloc {ask:?}: {answer:?}"));
        let added = self.sync_metadata();
        let Ok(got) = answer.map_err(|error| self.check_refused(ask, error, added)) else {
            return None;
        };
        assert_eq!((ask.bad(), got.frames()), (None, ask.frames));
        assert!(
            got.start().number().is_multiple_of(ask.align) && got.end() <= pfn(ask.below),
            "{got:?}"
        );
        assert!(ask.at.is_none_or(|at| got.start() == pfn(at)), "{got:?}");
        assert!(numbers(got).all(|f| self.is_free_for(f, ask)), "not free: {got:?} for {ask:?}");
        if let Some((node, zone)) = first_choice {
            self.check_choice(got, ask, node, zone);
        }
        self.next_owner += 1;
        self.take(got, Tag { owner: self.next_owner, movable: ask.movable });
        Some(got)
    }

    /// Checks that the frames come from the node and zone that the request prefers.
    fn check_choice(&self, got: PfnRange, ask: &Ask, node: NodeId, zone: Zone) {
        let start = got.start().number();
        let came = (self.node_of(start), self.block_of(start).movable == (zone == Zone::Movable));
        match ask.node {
            // Any other node is right, because the CPU's hint may be used first.
            Some(NodeChoice::Leaving(left)) => {
                assert_eq!(came.0 == Some(left), node == left, "{ask:?}");
            }
            _ => assert_eq!(came, (Some(node), true), "{ask:?}: {node:?} {zone:?}"),
        }
    }

    fn check_refused(&self, ask: &Ask, error: AllocError, metadata_added: usize) {
        match error {
            AllocError::Bad(bad) => assert_eq!(Some(bad), ask.bad(), "{ask:?}"),
            AllocError::NotFree(piece) => {
                let place = range(ask.at.expect("an exact place"), ask.frames);
                assert_eq!(Some(piece), self.first_not_free(place, ask), "{ask:?}");
            }
            AllocError::OutOfMemory => {
                assert!(ask.bad().is_none() && ask.at.is_none(), "{ask:?}");
                assert!(!self.can_grant(ask), "out of memory for {ask:?}");
                assert!(!self.is_out_for(ask), "the host has what {ask:?} may have");
            }
            // Only memory that is out for reporting can make the engine busy here.
            AllocError::Busy => assert!(self.is_out_for(ask), "{ask:?}"),
        }
        assert_eq!(metadata_added, 0, "a refusal of {ask:?} changed the machine");
    }

    /// Returns whether memory of a zone that the request may use is out for reporting.
    pub(crate) fn is_out_for(&self, ask: &Ask) -> bool {
        self.blocks.iter().any(|block| block.out && (ask.movable || !block.movable))
    }

    /// Records an allocation in the model, and writes the owner's tag to the first word of each
    /// frame.
    pub(crate) fn take(&mut self, got: PfnRange, tag: Tag) {
        for frame in numbers(got) {
            assert_eq!(self.frame[frame as usize], Frame::Free, "frame {frame:#x} for {tag:?}");
            self.frame[frame as usize] = Frame::Used(tag);
            self.blocks[(frame / BLOCK) as usize].reported = false;
            self.memory.word(frame).store(tag.owner, Ordering::Relaxed);
        }
    }

    /// Frees frames, and checks the result and that each frame still has its owner's tag.
    pub(crate) fn free(&mut self, given: PfnRange) {
        let expected = self.free_refused(given);
        if expected.is_none() {
            self.give(given);
        }
        let answer = self.frames.give_raw(given);
        self.tell(|| format!("free {given:?}: {answer:?}"));
        assert_eq!(answer, expected.map_or(Ok(()), Err), "free {given:?}");
        let added = self.sync_metadata();
        assert!(answer.is_ok() || added == 0, "a refused free changed the machine");
    }

    /// Records a free in the model. This comes before the engine's free, because the engine may use
    /// the frames at once.
    pub(crate) fn give(&mut self, given: PfnRange) {
        for frame in numbers(given) {
            let Frame::Used(tag) = self.frame[frame as usize] else { panic!("{frame:#x} is free") };
            assert_eq!(self.memory.word(frame).load(Ordering::Relaxed), tag.owner, "{frame:#x}");
            let is_bad = self.poisoned.contains(&frame);
            self.frame[frame as usize] = if is_bad { Frame::Poisoned } else { Frame::Free };
        }
    }

    fn free_refused(&self, given: PfnRange) -> Option<RangeError> {
        let refused = |range, kind| Some(RangeError { range, kind });
        if given.is_empty() {
            return refused(given, RangeErrorKind::Empty);
        }
        if !self.regions.iter().any(|region| region.range.covers(given)) {
            return refused(given, RangeErrorKind::Foreign);
        }
        given.chunks(BLOCK).find_map(|piece| {
            if !self.block_of(piece.start().number()).online {
                return refused(piece, RangeErrorKind::Foreign);
            }
            let free = |frame: u64| !matches!(self.frame[frame as usize], Frame::Used(_));
            let any_free = numbers(piece).any(free);
            if any_free { refused(piece, RangeErrorKind::NotAllocated) } else { None }
        })
    }

    /// Returns a random run of frames with one owner.
    fn some_used(&mut self) -> Option<(PfnRange, Tag)> {
        let at = self.rng.u64(..SIZE);
        let tag_of = |frame: u64| match self.frame[frame as usize] {
            Frame::Used(tag) if tag.owner != TABLES => Some(tag),
            _ => None,
        };
        let inside = (at..SIZE).chain(0..at).find(|&frame| tag_of(frame).is_some())?;
        let tag = tag_of(inside)?;
        let same = |frame: &u64| tag_of(*frame) == Some(tag);
        let below = (0..inside).rev().take_while(same).count() as u64;
        let above = (inside..SIZE).take_while(same).count() as u64;
        Some((range(inside - below, below + above), tag))
    }

    pub(crate) fn some_ask(&mut self) -> Ask {
        let rng = &mut self.rng;
        let frames = match rng.u32(..100) {
            0..55 => 1,
            55..70 => rng.u64(1..=WORD),
            70..80 => rng.u64(1..=BLOCK),
            80..92 => BLOCK * rng.u64(1..=3),
            92..98 => rng.u64(BLOCK..=SECTION),
            _ => rng.u64(SECTION..4 * SECTION),
        };
        let mut ask = Ask { movable: rng.u8(..10) < 7, ..Ask::frames(frames) };
        if rng.u8(..4) == 0 {
            ask.align = 1 << rng.u32(..=SECTION.ilog2() + 1);
        }
        if rng.u8(..6) == 0 {
            ask.below = rng.u64(..=SIZE);
        }
        if rng.u8(..8) == 0 {
            let at = rng.u64(..SIZE);
            ask.at = Some(at - at % ask.align);
        } else if rng.u8(..8) == 0 {
            let node = NODES[rng.usize(..NODES.len())];
            let choices = [NodeChoice::Near, NodeChoice::Only, NodeChoice::Leaving];
            ask.node = Some(choices[rng.usize(..3)](node));
        }
        ask
    }
}

impl Machine<'_> {
    pub(crate) fn allocate_or_free(&mut self) {
        let world = &mut self.world;
        let allocate = world.rng.u8(..100) < if self.filling { 70 } else { 30 };
        if allocate {
            let ask = world.some_ask();
            world.alloc(&ask);
        } else if let Some((used, tag)) = world.some_used() {
            // Frames that boot reserved are kept longer.
            let part = tag.owner == BOOT || world.rng.u8(..3) == 0;
            let part = if part { world.some_part(used) } else { used };
            if tag.owner == BOOT {
                self.free_reserved(part);
            } else {
                world.free(part);
            }
        }
    }

    /// Frees memory that boot reserved, which then is memory like any other.
    pub(crate) fn free_reserved(&mut self, part: PfnRange) {
        self.world.give(part);
        let answer = self.hotplug.give_reserved(part);
        self.world.tell(|| format!("free reserved {part:?}: {answer:?}"));
        assert_eq!(answer, Ok(()));
        self.world.sync_metadata();
    }

    /// Checks that memory which boot did not reserve, or which was freed before, is refused.
    fn free_unreserved(&mut self, given: PfnRange) {
        let of_boot = |frame: u64| {
            let at = self.world.frame.get(frame as usize);
            matches!(at, Some(Frame::Used(tag)) if tag.owner == BOOT)
        };
        let Some(piece) = given.chunks(BLOCK).find(|&piece| !numbers(piece).all(of_boot)) else {
            return;
        };
        let refused = RangeError { range: piece, kind: RangeErrorKind::NotReserved };
        assert_eq!(self.hotplug.give_reserved(given), Err(refused));
    }

    /// Makes frees that must be refused: of free frames, of frames that are not online, of an empty
    /// range.
    pub(crate) fn bad_free(&mut self) {
        let world = &mut self.world;
        let start = world.rng.u64(..SIZE + SECTION);
        let len = if world.rng.bool() { 1 } else { world.rng.u64(..3 * BLOCK) };
        let given = range(start, len);
        // Holes and metadata look used to the engine, so the test must not free them.
        let innocent = numbers(given).all(|frame| {
            let at = self.world.frame.get(frame as usize);
            !matches!(at, Some(Frame::Hole | Frame::Metadata | Frame::Used(_)))
        });
        let any_free =
            numbers(given).any(|frame| self.world.frame.get(frame as usize) == Some(&Frame::Free));
        let others = numbers(given).all(|frame| {
            !matches!(self.world.frame.get(frame as usize), Some(Frame::Hole | Frame::Metadata))
        });
        self.free_unreserved(given);
        if innocent || (any_free && others) {
            self.world.free(given);
        }
    }
}

impl World<'_> {
    pub(crate) fn some_part(&mut self, whole: PfnRange) -> PfnRange {
        let first = self.rng.u64(..whole.frames());
        let len = self.rng.u64(1..=whole.frames() - first);
        range(whole.start().number() + first, len)
    }
}
