//! Removes all removable memory of a machine, and checks that all other memory has a reason to stay.

use crate::machine::Machine;
use crate::model::{Block, FrameState, Model, SIZE, TABLES_OWNER};
use hotmem::{Metadata, OnlineType, PfnRange};
use hotmem_testkit::{PAGEBLOCK, SECTION, numbers, range};

impl Machine<'_> {
    pub(crate) fn remove_all_memory(&mut self) {
        let model = &mut self.model;
        (model.veto_percent, model.retry_percent, model.refusal_percent) = (0, 0, 0);
        self.end_all();
        self.free_all();
        loop {
            let before = self.model.frames.counts().present;
            self.shrink_all();
            if self.model.frames.counts().present == before {
                break;
            }
        }
        self.check();
        self.validate();
        self.check_remaining();
    }

    /// Finishes all requests in progress.
    fn end_all(&mut self) {
        while !self.requests.is_empty() {
            self.cancel();
        }
        for token in std::mem::take(&mut self.tokens) {
            let held = token.range();
            token.release();
            self.model.blocks_in(held).iter_mut().for_each(|block| block.token = false);
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
            match self.model.frame_states[frame as usize] {
                FrameState::Used(tag) if tag.owner != TABLES_OWNER => {
                    self.model.free(range(frame, 1))
                }
                _ => {}
            }
        }
    }

    /// Detaches device memory, puts offline memory online, and then shrinks the whole machine once.
    fn shrink_all(&mut self) {
        for block in range(0, SIZE).chunks(PAGEBLOCK) {
            let Block { is_present, device, online, .. } =
                *self.model.block_of(block.start().number());
            if device {
                self.detach_range(block);
            } else if is_present && !online {
                let (hotplug, model) = (&mut self.hotplug, &mut self.model);
                hotplug
                    .online(block, OnlineType::Movable, model)
                    .expect("no listener refuses while the machine is emptied");
            }
        }
        self.shrink_range(range(0, SIZE), SIZE, PAGEBLOCK, u64::MAX);
        while !self.requests.is_empty() {
            self.poll();
            self.finish_removals();
        }
    }

    /// Checks that each remaining pageblock holds an unmovable frame, or holds metadata or
    /// descriptors of memory that stays.
    fn check_remaining(&self) {
        let metadata: Vec<_> = self.model.frames.metadata().collect();
        for block in range(0, SIZE).chunks(PAGEBLOCK) {
            if self.model.block_of(block.start().number()).is_present {
                let has_reason = self.model.has_reason_to_stay(block, &metadata);
                assert!(has_reason, "{block:?} stays without a reason: {:?}", self.model.blocks);
            }
        }
    }
}

impl Model<'_> {
    fn has_reason_to_stay(&self, block: PfnRange, metadata: &[Metadata]) -> bool {
        let others_stay = |section: PfnRange| {
            let others = section.chunks(PAGEBLOCK).filter(|&other| other != block);
            let mut others = others.filter(|&other| !self.holds_descriptors(other));
            others.any(|other| self.block_of(other.start().number()).is_present)
        };
        // Records describe nothing, and words describe more than a section. All other metadata
        // describes one section.
        let is_words_or_record =
            |described: PfnRange| described.is_empty() || described.frames() > SECTION;
        let in_block = metadata.iter().filter(|metadata| metadata.frames.overlaps(block));
        // Bitmaps in boot memory last as long as the words of their section.
        let is_lasting = |m: &Metadata| self.all_blocks_are(m.frames, |block| block.is_boot);
        let is_needed = |m: &Metadata| {
            is_words_or_record(m.describes) || is_lasting(m) || others_stay(m.describes)
        };
        self.all_blocks_are(block, |block| block.is_boot)
            || self.holds_descriptors(block) && others_stay(block.align_outward(SECTION))
            || in_block.filter(|m| !self.holds_descriptors(m.frames)).any(is_needed)
            || numbers(block).any(|f| {
                matches!(self.frame_states[f as usize], FrameState::Used(_) | FrameState::Hole)
            })
    }
}
