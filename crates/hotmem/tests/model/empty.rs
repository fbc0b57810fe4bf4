//! Ends a machine: removes all memory that can be removed, and checks the reason why the rest
//! stays.

use crate::world::{BOOT, Block, Frame, Machine, SIZE, TABLES, World};
use hotmem::{Metadata, OnlineType, PfnRange};
use hotmem_testkit::{BLOCK, SECTION, numbers, range};

impl Machine<'_> {
    pub(crate) fn empty(&mut self) {
        let world = &mut self.world;
        (world.vetoes, world.retries, world.refusals) = (0, 0, 0);
        self.end_all();
        self.free_all();
        loop {
            let before = self.world.frames.counts().present;
            self.shrink_all();
            if self.world.frames.counts().present == before {
                break;
            }
        }
        self.check();
        self.validate();
        self.check_left();
    }

    /// Finishes all requests in progress.
    fn end_all(&mut self) {
        while !self.requests.is_empty() {
            self.cancel();
        }
        for token in std::mem::take(&mut self.tokens) {
            let held = token.range();
            token.release();
            self.world.blocks_in(held).iter_mut().for_each(|block| block.token = false);
        }
        while !self.additions.is_empty() {
            self.finish_addition();
        }
        self.finish_removals();
        self.end_reporting();
    }

    fn finish_removals(&mut self) {
        while !self.removals.is_empty() {
            self.finish_removal();
        }
    }

    fn free_all(&mut self) {
        for frame in numbers(range(0, SIZE)) {
            match self.world.frame[frame as usize] {
                Frame::Used(tag) if tag.owner == BOOT => self.free_reserved(range(frame, 1)),
                Frame::Used(tag) if tag.owner != TABLES => self.world.free(range(frame, 1)),
                _ => {}
            }
        }
    }

    /// Shrinks each region once, from the top down, and removes the memory that is offline.
    fn shrink_all(&mut self) {
        for block in range(0, SIZE).chunks(BLOCK) {
            let Block { present, device, online, .. } =
                *self.world.block_of(block.start().number());
            if device {
                self.detach_range(block);
            } else if present && !online && self.world.has_poison(block) {
                self.remove_range(block);
                self.finish_removals();
            } else if present && !online {
                let (hotplug, world) = (&mut self.hotplug, &mut self.world);
                hotplug.online(block, OnlineType::Movable, world).expect("nobody refuses");
            }
        }
        self.shrink_range(range(0, SIZE), SIZE, BLOCK, u64::MAX);
        while !self.requests.is_empty() {
            self.poll();
            self.finish_removals();
        }
    }

    /// Checks that each remaining pageblock has a pinned frame, or metadata or descriptors of
    /// memory that stays.
    fn check_left(&self) {
        let metadata: Vec<_> = self.world.frames.metadata().collect();
        for block in range(0, SIZE).chunks(BLOCK) {
            if self.world.block_of(block.start().number()).present {
                let stays = self.world.may_stay(block, &metadata);
                assert!(stays, "{block:?} is left behind: {:?}", self.world.blocks);
            }
        }
    }
}

impl World<'_> {
    fn may_stay(&self, block: PfnRange, metadata: &[Metadata]) -> bool {
        let others_stay = |section: PfnRange| {
            let others = section.chunks(BLOCK).filter(|&other| other != block);
            let mut others = others.filter(|&other| !self.is_kept(other));
            others.any(|other| self.block_of(other.start().number()).present)
        };
        // Metadata of many sections, of nodes or of regions. All other metadata describes a single
        // section.
        let is_words = |of: PfnRange| of.is_empty() || of.frames() > SECTION;
        let here = metadata.iter().filter(|metadata| metadata.frames.overlaps(block));
        // Bitmaps in boot memory last as long as the words of what they describe.
        let lasts = |m: &Metadata| self.fixed.covers(m.frames);
        let needed = |m: &Metadata| is_words(m.describes) || lasts(m) || others_stay(m.describes);
        self.is_kept(block) && others_stay(block.align_outward(SECTION))
            || here.filter(|m| !self.is_kept(m.frames)).any(needed)
            || numbers(block)
                .any(|f| matches!(self.frame[f as usize], Frame::Used(_) | Frame::Hole))
    }
}
