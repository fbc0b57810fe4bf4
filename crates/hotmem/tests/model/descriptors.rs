//! Implements a kernel with descriptors of RAM, which half of the machines have. A section that is
//! added as a whole holds its own descriptors. Each other pageblock has one frame of descriptors.

use crate::machine::Machine;
use crate::model::{Block, DESCRIPTORS_OWNER, FrameState, Model, SIZE, TABLES_OWNER, Tag};
use crate::model_request::ModelRequest;
use fastrand::Rng;
use hotmem::{Metadata, Pfn, PfnRange};
use hotmem_testkit::forwarding::Free;
use hotmem_testkit::{PAGEBLOCK, SECTION, numbers, pfn, range};
use std::sync::atomic::Ordering;

/// The sizes of a kernel's descriptors.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DescriptorPolicy {
    /// The number of pageblocks that hold the descriptors of a section that is added as a whole.
    descriptor_blocks: u64,
    /// The number of frames that the kernel requests for descriptors, but never takes.
    unused_frames: u64,
}

impl DescriptorPolicy {
    pub(crate) fn random(rng: &mut Rng) -> Option<DescriptorPolicy> {
        let descriptor_blocks = [1, 1, 1, 0, 2, SECTION][rng.usize(..6)];
        rng.bool().then(|| DescriptorPolicy { descriptor_blocks, unused_frames: rng.u64(..2) })
    }
}

impl Machine<'_> {
    /// Makes a random call for the pageblocks that hold the descriptors of a section, for other
    /// pageblocks of the section, or for the whole section.
    pub(crate) fn change_described_section(&mut self) {
        let model = &mut self.model;
        let sections: Vec<_> = { model.descriptor_ranges() }
            .map(|metadata| (metadata.describes, metadata.frames))
            .collect();
        if sections.is_empty() {
            return;
        }
        let (section, descriptors) = sections[model.rng.usize(..sections.len())];
        let rest = section.split_at(descriptors.end()).1;
        let above = model.random_part(rest).align_outward(PAGEBLOCK);
        let part = [section, descriptors, rest, above][model.rng.usize(..4)];
        match model.rng.u8(..10) {
            0 if self.requests.len() < self.profile.max_requests => self.start_offline(part),
            0 | 1 => self.isolate_range(part),
            2 => self.online_range(part),
            3 => self.add_range(part),
            4 => self.remove_range(part),
            5 => self.ram_to_device(part),
            6 => self.device_to_ram(part),
            7 => {
                let part = model.random_part(descriptors);
                model.free(part);
            }
            8 => self.poison_frame(descriptors.start().number()),
            _ => {
                let at = model.rng.u64(numbers(descriptors));
                model.alloc(&ModelRequest {
                    at: Some(at),
                    movable: true,
                    ..ModelRequest::frames(1)
                });
            }
        }
    }
}

/// The place of a pageblock's descriptors.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum DescriptorPlace {
    /// In memory that boot reserved.
    Boot,
    /// In the section of the pageblock.
    Section,
    /// In this frame.
    Frame(u64),
}

impl Model<'_> {
    pub(crate) fn descriptor_blocks(&self) -> u64 {
        self.descriptor_policy.map_or(0, |policy| policy.descriptor_blocks)
    }

    /// Returns whether this pageblock holds descriptors of the section that it lies in.
    pub(crate) fn holds_descriptors(&self, block: PfnRange) -> bool {
        self.frame_states.get(block.start().number() as usize) == Some(&FrameState::Descriptors)
    }

    /// Returns the pageblocks that hold the descriptors of the section that `section_part` lies in.
    fn descriptors_of_section(&self, section_part: PfnRange) -> PfnRange {
        let section = section_part.align_outward(SECTION);
        let descriptor_blocks =
            section.chunks(PAGEBLOCK).take_while(|&block| self.holds_descriptors(block)).count()
                as u64;
        range(section.start().number(), descriptor_blocks * PAGEBLOCK)
    }

    /// Returns the pageblocks with descriptors, which the engine must list as metadata.
    pub(crate) fn descriptor_ranges(&self) -> impl Iterator<Item = Metadata> {
        range(0, SIZE).chunks(SECTION).filter_map(|section| {
            let frames = self.descriptors_of_section(section);
            (!frames.is_empty()).then_some(Metadata { frames, describes: section })
        })
    }

    /// Returns the pageblocks that will hold descriptors when `section_part` is added. There are
    /// none if `section_part` is not a whole section, and never all pageblocks of the section.
    fn future_descriptors(&self, section_part: PfnRange) -> PfnRange {
        let is_whole_section = section_part.frames() == SECTION;
        let descriptor_blocks = if is_whole_section {
            self.descriptor_blocks().min(SECTION / PAGEBLOCK - 1)
        } else {
            0
        };
        section_part.split_at(pfn(section_part.start().number() + descriptor_blocks * PAGEBLOCK)).0
    }

    /// Returns whether the descriptors of `section_part` lie in its section when it is added.
    fn is_described_in_section(&self, section_part: PfnRange) -> bool {
        !self.future_descriptors(section_part).is_empty()
            || !self.descriptors_of_section(section_part).is_empty()
    }

    pub(crate) fn frames_for_descriptors(&self, range: PfnRange) -> u64 {
        let Some(policy) = self.descriptor_policy else { return 0 };
        let parts = range
            .chunks(SECTION)
            .filter(|&section_part| !self.is_described_in_section(section_part));
        parts.map(|section_part| section_part.frames() / PAGEBLOCK).sum::<u64>()
            + policy.unused_frames
    }

    pub(crate) fn describe_all(&mut self, range: PfnRange, take: &mut dyn FnMut() -> Option<Pfn>) {
        assert!(
            self.all_blocks_are(range, |block| block.mapped && block.descriptor_place.is_none()),
            "{range:?}"
        );
        if self.descriptor_policy.is_none() {
            return;
        }
        for section_part in range.chunks(SECTION) {
            let in_section = self.is_described_in_section(section_part);
            for frame in numbers(self.future_descriptors(section_part)) {
                assert_eq!(self.frame_states[frame as usize], FrameState::Free, "{frame:#x}");
                self.frame_states[frame as usize] = FrameState::Descriptors;
                self.memory.word(frame).store(DESCRIPTORS_OWNER, Ordering::Relaxed);
            }
            for block in section_part.chunks(PAGEBLOCK) {
                let place = if in_section {
                    DescriptorPlace::Section
                } else {
                    DescriptorPlace::Frame(self.take_descriptor_frame(take))
                };
                self.blocks_in(block)[0].descriptor_place = Some(place);
            }
        }
    }

    /// Takes a frame for descriptors from the engine.
    fn take_descriptor_frame(&mut self, take: &mut dyn FnMut() -> Option<Pfn>) -> u64 {
        let frame = take()
            .expect("the engine gives as many frames as `descriptors_needed` returned")
            .number();
        self.table_frames_taken += 1;
        let tag = Tag { owner: TABLES_OWNER, movable: false };
        if self.frame_states[frame as usize] != FrameState::Used(tag) {
            self.record_recalls();
            assert!(self.is_free_for(frame, &ModelRequest::frames(1)), "{frame:#x}");
            self.record_allocation(range(frame, 1), tag);
        }
        self.memory.word(frame).store(TABLES_OWNER, Ordering::Relaxed);
        assert!(
            self.blocks
                .iter()
                .all(|block| block.descriptor_place != Some(DescriptorPlace::Frame(frame)))
        );
        frame
    }

    pub(crate) fn undescribe_all(&mut self, removed: PfnRange, free: &mut Free<'_>) {
        if self.descriptor_policy.is_none() {
            return;
        }
        self.assert_untouched(removed);
        for frame in numbers(removed) {
            if self.frame_states[frame as usize] == FrameState::Descriptors {
                self.frame_states[frame as usize] = FrameState::Free;
            }
        }
        self.mark_forbidden(removed);
        for block in removed.chunks(PAGEBLOCK) {
            match self.blocks_in(block)[0]
                .descriptor_place
                .take()
                .expect("a pageblock that is undescribed has descriptors")
            {
                DescriptorPlace::Frame(frame) => {
                    self.record_free(range(frame, 1));
                    free(pfn(frame)).unwrap();
                    // The engine refuses a frame that the kernel does not own.
                    free(pfn(frame)).unwrap_err();
                }
                DescriptorPlace::Boot | DescriptorPlace::Section => {}
            }
        }
    }

    /// Checks that exactly the RAM has descriptors, and that all of them are intact.
    pub(crate) fn check_descriptors(&self) {
        for (number, block) in (0..).zip(&self.blocks) {
            let block_range = range(number * PAGEBLOCK, PAGEBLOCK);
            let is_described = self.descriptor_policy.is_some() && block.is_present;
            assert_eq!(
                block.descriptor_place.is_some(),
                is_described,
                "{block_range:?}: {block:?}"
            );
            let tables = FrameState::Used(Tag { owner: TABLES_OWNER, movable: false });
            let holds = |frames: PfnRange, state: FrameState, owner: u64| {
                let word = |frame: u64| self.memory.word(frame).load(Ordering::Relaxed);
                let is_held =
                    |frame: u64| (self.frame_states[frame as usize], word(frame)) == (state, owner);
                !frames.is_empty() && numbers(frames).all(is_held)
            };
            let is_intact = match block.descriptor_place {
                None | Some(DescriptorPlace::Boot) => true,
                Some(DescriptorPlace::Section) => holds(
                    self.descriptors_of_section(block_range),
                    FrameState::Descriptors,
                    DESCRIPTORS_OWNER,
                ),
                Some(DescriptorPlace::Frame(frame)) => {
                    self.block_of(frame).online && holds(range(frame, 1), tables, TABLES_OWNER)
                }
            };
            assert!(is_intact, "the descriptors of {block_range:?} are lost: {block:?}");
            assert!(
                !self.holds_descriptors(block_range) || block.is_present,
                "{block_range:?} still holds descriptors"
            );
        }
    }

    /// Checks that `range`, which is unmapped, holds no descriptors of memory that stays mapped.
    pub(crate) fn assert_describes_no_other(&self, range: PfnRange) {
        assert_eq!(self.first_needed_descriptors(range, range), None);
    }

    /// Returns the first pageblock of `within` that would still be needed after `removed_range` is
    /// removed, because it holds descriptors of memory that is present or being added.
    pub(crate) fn first_needed_descriptors(
        &self,
        within: PfnRange,
        removed_range: PfnRange,
    ) -> Option<PfnRange> {
        within.chunks(SECTION).find_map(|section_part| {
            let holder =
                section_part.chunks(PAGEBLOCK).find(|&block| self.holds_descriptors(block))?;
            let mut section = section_part.align_outward(SECTION).chunks(PAGEBLOCK);
            let must_stay = section.any(|block| {
                let Block { is_present, has_prepared_change, .. } =
                    *self.block_of(block.start().number());
                (is_present || has_prepared_change) && !removed_range.covers(block)
            });
            must_stay.then_some(holder)
        })
    }

    /// Returns the first pageblock that would have to hold descriptors of `range`, but is being
    /// removed.
    pub(crate) fn descriptors_being_removed(&self, range: PfnRange) -> Option<PfnRange> {
        range.chunks(SECTION).find_map(|section_part| {
            self.descriptors_of_section(section_part).chunks(PAGEBLOCK).find(|block| {
                let block = self.block_of(block.start().number());
                block.has_prepared_change && !block.online
            })
        })
    }

    /// Returns the first poisoned frame where descriptors would be placed if `range` were added.
    pub(crate) fn poison_under_descriptors(&self, range: PfnRange) -> Option<u64> {
        let mut places =
            range.chunks(SECTION).map(|section_part| self.future_descriptors(section_part));
        places.find_map(|place| self.poisoned_frames.range(numbers(place)).next().copied())
    }
}
