//! Poisons frames in any state.

use crate::machine::Machine;
use crate::model::{FrameState, Model, SIZE};
use hotmem::{PfnRange, Poisoned, RangeError, RangeErrorKind};
use hotmem_testkit::{numbers, pfn, range};

impl Machine<'_> {
    pub(crate) fn poison(&mut self) {
        let frame = self.model.rng.u64(..SIZE);
        self.poison_frame(frame);
    }

    pub(crate) fn poison_frame(&mut self, frame: u64) {
        let expected = self.model.expected_refusal(frame);
        let answer = self.hotplug.poison(pfn(frame));
        let model = &mut self.model;
        model.trace(|| format!("poison {frame:#x}: {answer:?}"));
        match (answer, expected) {
            (Ok(state), None) => {
                model.poisoned_frames.insert(frame);
                let was = model.frame_states[frame as usize];
                let in_use = matches!(was, FrameState::Used(_));
                assert_eq!(state == Poisoned::InUse, in_use, "{frame:#x} was {was:?}");
                if !in_use {
                    model.frame_states[frame as usize] = FrameState::Poisoned;
                }
            }
            (Err(RangeError { range: metadata, kind: RangeErrorKind::Metadata }), None) => {
                let is_metadata = |frame| is_metadata(model.frame_states[frame as usize]);
                assert!(metadata.contains(pfn(frame)) && numbers(metadata).all(is_metadata));
            }
            (Err(error), Some(expected)) => assert_eq!(error, expected),
            (answer, expected) => panic!("{answer:?} instead of {expected:?}"),
        }
        model.count_new_metadata();
        let poisoned = self.hotplug.frames().poisoned().map(|(frame, _)| frame.number());
        let mut poisoned: Vec<_> = poisoned.collect();
        poisoned.sort_unstable();
        assert!(poisoned.iter().eq(&model.poisoned_frames));
    }
}

/// Returns whether the frame is metadata, which cannot be poisoned.
fn is_metadata(frame: FrameState) -> bool {
    matches!(frame, FrameState::Metadata | FrameState::Descriptors)
}

impl Model<'_> {
    fn expected_refusal(&self, frame: u64) -> Option<RangeError> {
        let is_ram = self.frame_states[frame as usize] != FrameState::Hole;
        if !self.block_of(frame).is_present || !is_ram {
            return Some(RangeError { range: range(frame, 1), kind: RangeErrorKind::NotPresent });
        }
        None
    }

    /// Forgets the poisoned frames of memory that was removed.
    pub(crate) fn forget_poison(&mut self, removed: PfnRange) {
        for frame in numbers(removed) {
            if self.poisoned_frames.remove(&frame) {
                self.frame_states[frame as usize] = FrameState::Free;
            }
        }
    }
}
