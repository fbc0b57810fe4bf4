//! Gives the kernel of every other machine descriptors of RAM. A section that is added as a whole
//! holds its own descriptors; other pageblocks have one frame of descriptors each.

use crate::ask::Ask;
use crate::world::{Block, DESCRIPTORS, Frame, Machine, SIZE, TABLES, Tag, World};
use fastrand::Rng;
use hotmem::{Metadata, Pfn, PfnRange};
use hotmem_testkit::{BLOCK, SECTION, numbers, pfn, range};
use std::sync::atomic::Ordering;

/// How a kernel places descriptors.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Describing {
    /// The pageblocks for descriptors in a section that is added as a whole.
    keeps: u64,
    /// Frames that it requests but never takes.
    slack: u64,
}

impl Describing {
    pub(crate) fn some(rng: &mut Rng) -> Option<Describing> {
        let keeps = [1, 1, 1, 0, 2, SECTION][rng.usize(..6)];
        rng.bool().then(|| Describing { keeps, slack: rng.u64(..2) })
    }
}

impl Machine<'_> {
    /// Makes a random call for the pageblocks that hold a section's descriptors, for the rest of
    /// the section, or for all of it.
    pub(crate) fn stir_section(&mut self) {
        let world = &mut self.world;
        let sections: Vec<_> = world.kept().map(|kept| (kept.describes, kept.frames)).collect();
        if sections.is_empty() {
            return;
        }
        let (section, kept) = sections[world.rng.usize(..sections.len())];
        let rest = section.split_at(kept.end()).1;
        let above = world.some_part(rest).align_outward(BLOCK);
        let part = [section, kept, rest, above][world.rng.usize(..4)];
        match world.rng.u8(..10) {
            0 if self.requests.len() < 3 => self.start_offline(part),
            0 | 1 => self.isolate_range(part),
            2 => self.online_range(part),
            3 => self.add_range(part),
            4 => self.remove_range(part),
            5 => self.ram_to_device(part),
            6 => self.device_to_ram(part),
            7 => {
                let part = world.some_part(kept);
                world.free(part);
            }
            8 => self.poison_frame(kept.start().number()),
            _ => {
                let at = world.rng.u64(numbers(kept));
                world.alloc(&Ask { at: Some(at), movable: true, ..Ask::frames(1) });
            }
        }
    }
}

/// The place of a pageblock's descriptors.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum At {
    /// In memory that boot reserved.
    Boot,
    /// In its own section.
    Section,
    /// In this frame.
    Frame(u64),
}

impl World<'_> {
    pub(crate) fn keeps(&self) -> u64 {
        self.describing.map_or(0, |describing| describing.keeps)
    }

    /// Returns whether this pageblock holds descriptors of its section.
    pub(crate) fn is_kept(&self, block: PfnRange) -> bool {
        self.frame.get(block.start().number() as usize) == Some(&Frame::Descriptors)
    }

    /// Returns the pageblocks that hold the descriptors of the section of `piece`.
    fn kept_beside(&self, piece: PfnRange) -> PfnRange {
        let section = piece.align_outward(SECTION);
        let kept = section.chunks(BLOCK).take_while(|&block| self.is_kept(block)).count() as u64;
        range(section.start().number(), kept * BLOCK)
    }

    /// Returns the descriptors that the engine must list as metadata.
    pub(crate) fn kept(&self) -> impl Iterator<Item = Metadata> {
        range(0, SIZE).sections().filter_map(|section| {
            let frames = self.kept_beside(section);
            (!frames.is_empty()).then_some(Metadata { frames, describes: section })
        })
    }

    /// Returns the pageblocks that will hold the descriptors if `piece` is a whole section: never
    /// all of them.
    fn to_be_kept(&self, piece: PfnRange) -> PfnRange {
        let whole = piece.frames() == SECTION;
        let keeps = if whole { self.keeps().min(SECTION / BLOCK - 1) } else { 0 };
        piece.split_at(pfn(piece.start().number() + keeps * BLOCK)).0
    }

    /// Returns whether the descriptors of a part of a section lie in the section when the part is
    /// added.
    fn describes_itself(&self, piece: PfnRange) -> bool {
        !self.to_be_kept(piece).is_empty() || !self.kept_beside(piece).is_empty()
    }

    pub(crate) fn frames_to_describe(&self, range: PfnRange) -> u64 {
        let Some(Describing { slack, .. }) = self.describing else { return 0 };
        let parts = range.sections().filter(|&piece| !self.describes_itself(piece));
        parts.map(|piece| piece.frames() / BLOCK).sum::<u64>() + slack
    }

    pub(crate) fn describe_all(&mut self, range: PfnRange, take: &mut dyn FnMut() -> Option<Pfn>) {
        assert!(self.all(range, |block| block.mapped && block.described.is_none()), "{range:?}");
        if self.describing.is_none() {
            return;
        }
        for piece in range.sections() {
            let itself = self.describes_itself(piece);
            for frame in numbers(self.to_be_kept(piece)) {
                assert_eq!(self.frame[frame as usize], Frame::Free, "{frame:#x}");
                self.frame[frame as usize] = Frame::Descriptors;
                self.memory.word(frame).store(DESCRIPTORS, Ordering::Relaxed);
            }
            for block in piece.chunks(BLOCK) {
                let at = if itself { At::Section } else { At::Frame(self.frame_from(take)) };
                self.blocks_in(block)[0].described = Some(at);
            }
        }
    }

    /// Returns a frame for descriptors.
    fn frame_from(&mut self, take: &mut dyn FnMut() -> Option<Pfn>) -> u64 {
        let frame = take().expect("what was asked for").number();
        self.spare_taken += 1;
        let tag = Tag { owner: TABLES, movable: false };
        if self.frame[frame as usize] != Frame::Used(tag) {
            assert!(self.is_free_for(frame, &Ask::frames(1)), "{frame:#x}");
            self.take(range(frame, 1), tag);
        }
        assert!(self.blocks.iter().all(|block| block.described != Some(At::Frame(frame))));
        frame
    }

    pub(crate) fn undescribe_all(&mut self, gone: PfnRange, free: &mut dyn FnMut(Pfn)) {
        if self.describing.is_none() {
            return;
        }
        self.assert_untouched(gone);
        for frame in numbers(gone) {
            if self.frame[frame as usize] == Frame::Descriptors {
                self.frame[frame as usize] = Frame::Free;
            }
        }
        self.forbid(gone);
        for block in gone.chunks(BLOCK) {
            match self.blocks_in(block)[0].described.take().expect("it was described") {
                At::Frame(frame) => {
                    self.give(range(frame, 1));
                    free(pfn(frame));
                    // The engine refuses a frame that the kernel does not own.
                    free(pfn(frame));
                }
                At::Boot | At::Section => {}
            }
        }
    }

    /// Checks that exactly the RAM has descriptors, and that all of them are intact.
    pub(crate) fn check_descriptors(&self) {
        for (number, block) in (0..).zip(&self.blocks) {
            let all = range(number * BLOCK, BLOCK);
            let is_described = self.describing.is_some() && block.present;
            assert_eq!(block.described.is_some(), is_described, "{all:?}: {block:?}");
            let tables = Frame::Used(Tag { owner: TABLES, movable: false });
            let holds = |frames: PfnRange, what: Frame, owner: u64| {
                let word = |frame: u64| self.memory.word(frame).load(Ordering::Relaxed);
                let is = |frame: u64| (self.frame[frame as usize], word(frame)) == (what, owner);
                !frames.is_empty() && numbers(frames).all(is)
            };
            let is_held = match block.described {
                None | Some(At::Boot) => true,
                Some(At::Section) => holds(self.kept_beside(all), Frame::Descriptors, DESCRIPTORS),
                Some(At::Frame(frame)) => {
                    self.block_of(frame).online && holds(range(frame, 1), tables, TABLES)
                }
            };
            assert!(is_held, "the descriptors of {all:?} have gone: {block:?}");
            assert!(!self.is_kept(all) || block.present, "{all:?} still holds descriptors");
        }
    }

    /// Checks that memory which is unmapped holds no descriptors of memory that stays mapped.
    pub(crate) fn assert_describes_no_other(&self, range: PfnRange) {
        assert_eq!(self.first_describing(range, range), None);
    }

    /// Returns the first pageblock of `within` that would hold descriptors of memory that is
    /// present, or being added, after `leaving` is removed.
    pub(crate) fn first_describing(&self, within: PfnRange, leaving: PfnRange) -> Option<PfnRange> {
        within.sections().find_map(|piece| {
            let kept = piece.chunks(BLOCK).find(|&block| self.is_kept(block))?;
            let mut section = piece.align_outward(SECTION).chunks(BLOCK);
            let stays = section.any(|block| {
                let Block { present, in_transit, .. } = self.block_of(block.start().number());
                (*present || *in_transit) && !leaving.covers(block)
            });
            stays.then_some(kept)
        })
    }

    /// Returns the first pageblock that is being removed and would have to hold descriptors of
    /// `range`.
    pub(crate) fn leaving_descriptors(&self, range: PfnRange) -> Option<PfnRange> {
        range.sections().find_map(|piece| {
            self.kept_beside(piece).chunks(BLOCK).find(|block| {
                let block = self.block_of(block.start().number());
                block.in_transit && !block.online
            })
        })
    }

    /// Returns the first poisoned frame where descriptors would be placed if `range` were added.
    pub(crate) fn poison_under_descriptors(&self, range: PfnRange) -> Option<u64> {
        let mut kept = range.sections().map(|piece| self.to_be_kept(piece));
        kept.find_map(|kept| self.poisoned.range(numbers(kept)).next().copied())
    }
}
