//! Tests requests for several frames in memory of which only single frames are free.

use hotmem::*;
use hotmem_testkit::{BITMAP_WORD_FRAMES, Cpus, Memory, RawRanges as _, SECTION, Validated as _};
use hotmem_testkit::{boot, range};
use proptest::prelude::*;
use std::collections::BTreeSet;

const MEMORY: u64 = 2 * SECTION;
const CPUS: usize = 3;

/// What a step does. An index chooses among the frames in use.
#[derive(Clone, Copy, Debug)]
enum Step {
    Free {
        index: usize,
    },
    /// Frees the frame after one that is free, which makes a run.
    FreeNeighbour {
        index: usize,
    },
    Alloc,
    /// Requests this many frames, and frees them again.
    Request {
        frames: u64,
        has_bound: bool,
        keep: bool,
    },
}

fn steps() -> impl Strategy<Value = Vec<(usize, Step)>> {
    let step = prop_oneof![
        4 => any::<usize>().prop_map(|index| Step::Free { index }),
        2 => any::<usize>().prop_map(|index| Step::FreeNeighbour { index }),
        2 => Just(Step::Alloc),
        3 => (2..5u64, any::<bool>(), any::<bool>())
            .prop_map(|(frames, has_bound, keep)| Step::Request { frames, has_bound, keep }),
    ];
    prop::collection::vec((0..CPUS, step), 0..if cfg!(miri) { 20 } else { 300 })
}

/// An instance of which all frames were allocated, and the frames that are free now.
struct Model<'f> {
    frames: &'f Frames<Cpus>,
    used: Vec<u64>,
    free: BTreeSet<u64>,
}

impl Model<'_> {
    /// Returns whether some `frames` free frames below `bound` follow each other in one word of a
    /// bitmap.
    fn has_run(&self, frames: u64, bound: u64) -> bool {
        self.free.iter().any(|&first| {
            first % BITMAP_WORD_FRAMES + frames <= BITMAP_WORD_FRAMES
                && first + frames <= bound
                && (first..first + frames).all(|frame| self.free.contains(&frame))
        })
    }

    fn free(&mut self, index: usize) {
        let frame = self.used.swap_remove(index);
        self.frames.free_range(range(frame, 1)).unwrap();
        self.free.insert(frame);
    }

    fn note_allocated(&mut self, allocated: PfnRange) {
        for frame in allocated.start().number()..allocated.end().number() {
            assert!(self.free.remove(&frame), "{frame} was in use");
            self.used.push(frame);
        }
    }

    fn request(&mut self, frames: u64, has_bound: bool, keep: bool) {
        let bound = if has_bound { MEMORY / 2 } else { MEMORY };
        let request = AllocRequest::frames(frames).within(..range(bound, 1).start());
        match self.frames.alloc_range(request) {
            Ok(allocated) if keep => self.note_allocated(allocated),
            Ok(allocated) => self.frames.free_range(allocated).unwrap(),
            Err(error) => {
                assert_eq!(error, AllocError::OutOfMemory);
                assert!(!self.has_run(frames, bound), "{frames} frames were free");
            }
        }
    }

    fn step(&mut self, step: Step) {
        match step {
            Step::Free { index } if !self.used.is_empty() => self.free(index % self.used.len()),
            Step::FreeNeighbour { index } if !self.free.is_empty() => {
                let next = self.free.iter().nth(index % self.free.len()).unwrap() + 1;
                if let Some(index) = self.used.iter().position(|&frame| frame == next) {
                    self.free(index);
                }
            }
            Step::Alloc => match self.frames.alloc_range(AllocRequest::frames(1)) {
                Ok(allocated) => self.note_allocated(allocated),
                Err(error) => {
                    assert_eq!(error, AllocError::OutOfMemory);
                    assert!(self.free.is_empty());
                }
            },
            Step::Request { frames, has_bound, keep } => self.request(frames, has_bound, keep),
            Step::Free { .. } | Step::FreeNeighbour { .. } => {}
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: if cfg!(miri) { 2 } else if cfg!(debug_assertions) { 30 } else { 300 },
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn a_request_fails_only_if_no_such_run_is_free(steps in steps()) {
        let (frames, memory) = (Frames::new(Cpus), Memory::new(MEMORY));
        let _hotplug = boot(&frames, &memory, MEMORY);
        let mut model = Model { frames: &frames, used: vec![], free: BTreeSet::new() };
        while let Ok(frame) = frames.alloc_range(AllocRequest::frames(1)) {
            model.used.push(frame.start().number());
        }
        for (cpu, step) in steps {
            Cpus::run_on(cpu);
            model.step(step);
        }
        frames.validated().unwrap();
        prop_assert_eq!(frames.counts().free, model.free.len() as u64);
    }
}
