//! Compares requests that have a lower and an upper bound with a naive search of all free frames.

use fastrand::Rng;
use hotmem::*;
use hotmem_testkit::RawRanges as _;
use hotmem_testkit::Validated as _;
use hotmem_testkit::{Memory, PAGEBLOCK, SECTION, boot, pfn, range};
use std::collections::BTreeSet;

const MEMORY_FRAMES: u64 = 3 * SECTION;

/// An instance, and the frames of it that must be free.
struct FreeFrames<'f> {
    frames: &'f Frames<OneCpu>,
    free_frames: BTreeSet<u64>,
}

impl FreeFrames<'_> {
    /// Makes a request and compares the result with the free frames.
    fn alloc(
        &mut self,
        request: AllocRequest,
        len: u64,
        lower: u64,
        upper: u64,
    ) -> Option<PfnRange> {
        let request = request.within(pfn(lower)..pfn(upper));
        match self.frames.alloc_range(request) {
            Ok(allocated) => {
                let taken = allocated.start().number()..allocated.end().number();
                assert_eq!(allocated.frames(), len);
                assert!(
                    lower <= taken.start && taken.end <= upper,
                    "{allocated} of {lower}..{upper}"
                );
                for frame in taken {
                    assert!(self.free_frames.remove(&frame), "{frame} was not free");
                }
                Some(allocated)
            }
            Err(error) => {
                assert_eq!(error, AllocError::OutOfMemory);
                if len == 1 {
                    let free_frame = self.free_frames.range(lower..upper.max(lower)).next();
                    assert_eq!(free_frame, None, "{lower}..{upper}");
                }
                None
            }
        }
    }

    fn free_range(&mut self, allocated: PfnRange) {
        self.frames.free_range(allocated).unwrap();
        self.free_frames.extend(allocated.start().number()..allocated.end().number());
    }
}

#[test]
fn memory_between_the_bounds_can_be_allocated_and_no_other() {
    let memory = Memory::new(MEMORY_FRAMES);
    let frames = Frames::new(OneCpu);
    let _hotplug = boot(&frames, &memory, MEMORY_FRAMES);
    // Now all sections have their bitmaps, so no more frames become metadata later.
    let allocated_frames: Vec<_> =
        std::iter::from_fn(|| frames.alloc_range(AllocRequest::frames(1)).ok()).collect();
    let free_frames = allocated_frames.iter().map(|allocated| allocated.start().number()).collect();
    allocated_frames.into_iter().for_each(|allocated| frames.free_range(allocated).unwrap());
    let mut free = FreeFrames { frames: &frames, free_frames };
    let rng = &mut Rng::with_seed(11);
    let mut held: Vec<PfnRange> = vec![];
    let mut outcomes = [0; 2];
    for _ in 0..if cfg!(miri) { 100 } else { 20_000 } {
        if !held.is_empty() && rng.u8(..5) < 2 {
            free.free_range(held.swap_remove(rng.usize(..held.len())));
            continue;
        }
        let len = [1, 1, 1, 3, 8, PAGEBLOCK / 8, PAGEBLOCK, 2 * PAGEBLOCK, SECTION][rng.usize(..9)];
        let random_above = |rng: &mut Rng, frame: u64| match rng.u8(..3) {
            0 => frame,
            1 => frame + rng.u64(..2 * PAGEBLOCK),
            _ => rng.u64(..=MEMORY_FRAMES),
        };
        let start = rng.u64(..MEMORY_FRAMES);
        let lower = random_above(rng, start).min(MEMORY_FRAMES);
        let upper = (random_above(rng, lower) + len).min(MEMORY_FRAMES);
        let request = AllocRequest::frames(len);
        let aligned = rng.bool() && len.is_power_of_two();
        let request = if aligned { request.aligned(len) } else { request };
        let allocated = free.alloc(request, len, lower, upper);
        outcomes[usize::from(allocated.is_some())] += 1;
        held.extend(allocated);
    }
    assert!(
        cfg!(miri) || outcomes[0] > 100 && outcomes[1] > 100,
        "requests must both succeed and fail: {outcomes:?}"
    );
    frames.validated().unwrap();
}

#[test]
fn one_frame_between_the_bounds_is_enough() {
    let memory = Memory::new(MEMORY_FRAMES);
    let frames = Frames::new(OneCpu);
    let _hotplug = boot(&frames, &memory, MEMORY_FRAMES);
    let one = AllocRequest::frames(1);
    // The first pageblock that is divided in a section also holds the section's bitmap frame.
    for frame in
        [SECTION + 1, SECTION + 2 * PAGEBLOCK - 1, 2 * SECTION, 2 * SECTION + PAGEBLOCK + 3]
    {
        let allocated = frames.alloc_range(one.within(pfn(frame)..pfn(frame + 1))).unwrap();
        assert_eq!(allocated, range(frame, 1));
        let again = frames.alloc_range(one.within(pfn(frame)..pfn(frame + 1)));
        assert_eq!(again, Err(AllocError::OutOfMemory));
        assert_eq!(frames.alloc_range(one.at(pfn(frame)).within(pfn(frame + 1)..)), {
            Err(AllocError::Bad(BadRequest::Place(pfn(frame))))
        });
        frames.free_range(allocated).unwrap();
    }
    let empty_bounds = one.within(pfn(2 * SECTION)..pfn(SECTION));
    assert_eq!(frames.alloc_range(empty_bounds), Err(AllocError::OutOfMemory));
}
