//! Tests the fast paths of single frames, which interfaces to other languages inline.

use hotmem::*;
use hotmem_testkit::RawRanges as _;
use hotmem_testkit::Validated as _;
use hotmem_testkit::{Cpus, Memory, pfn, range};
use std::collections::BTreeSet;

const BOOT_FRAMES: u64 = 2048;

#[test]
fn fast_paths_allocate_and_free_each_frame_one_time() {
    let (frames, memory) = (Frames::new(Cpus), Memory::new(BOOT_FRAMES));
    let _hotplug = hotmem_testkit::boot(&frames, &memory, BOOT_FRAMES);
    let before = frames.counts();
    let mut fast = 0;
    let mut owned = BTreeSet::new();
    // Any CPU number is valid here: it only chooses the record.
    for cpu in [0, 1, 7, 8, 1000, usize::MAX].into_iter().cycle() {
        Cpus::run_on(cpu % 3);
        let frame = match frames.alloc_frame_fast(cpu) {
            Some(number) => {
                fast += 1;
                pfn(number)
            }
            None => match frames.alloc_range(AllocRequest::frames(1)) {
                Ok(frame) => frame.start(),
                Err(_) => break,
            },
        };
        assert!(owned.insert(frame), "{frame} was allocated twice");
    }
    let count = owned.len() as u64;
    assert_eq!(frames.counts().free, 0);
    assert!(fast > 0);
    let (mut complete, mut incomplete) = (0, 0);
    for (index, frame) in owned.into_iter().enumerate() {
        let cpu = index / 100;
        Cpus::run_on(cpu % 3);
        // SAFETY: the test owns the frame, and does not use it.
        match unsafe { frames.free_frame_fast(frame, cpu % 3) } {
            FastFree::Complete => complete += 1,
            FastFree::Incomplete => {
                incomplete += 1;
                frames.complete_free(frame);
            }
            FastFree::Nothing => frames.free_range(range(frame.number(), 1)).unwrap(),
        }
        // SAFETY: nobody uses the frame, and a frame that is free cannot be freed.
        let again = unsafe { frames.free_frame_fast(frame, cpu % 3) };
        assert_eq!(again, FastFree::Nothing, "{frame} was freed twice");
    }
    assert!(complete > 0 && incomplete > 0, "{complete} and {incomplete}");
    // Some of the frames that were free before may hold bitmaps now.
    let free = frames.counts().free;
    assert!(count <= free && free <= before.free, "{count}, {free}, {}", before.free);
    frames.validated().unwrap();
}

#[test]
fn completing_a_free_that_was_not_begun_changes_nothing() {
    let (frames, memory) = (Frames::new(Cpus), Memory::new(BOOT_FRAMES));
    let _hotplug = hotmem_testkit::boot(&frames, &memory, BOOT_FRAMES);
    let block = geometry::PAGEBLOCK_FRAMES as u64;
    let whole_block = frames.alloc_range(AllocRequest::frames(block)).unwrap();
    let singles: Vec<_> =
        (0..40).map(|_| frames.alloc_range(AllocRequest::frames(1)).unwrap()).collect();
    let token = frames.isolate(range(whole_block.start().number(), block)).unwrap();
    let before = frames.counts();
    let invalid_numbers = [BOOT_FRAMES, BOOT_FRAMES * 64, hotmem_testkit::PFN_LIMIT - 1];
    for number in (0..BOOT_FRAMES).chain(invalid_numbers) {
        frames.complete_free(pfn(number));
    }
    assert_eq!(frames.counts(), before);
    frames.validated().unwrap();
    token.release();
    for owned in singles.into_iter().chain([whole_block]) {
        frames.free_range(owned).unwrap();
    }
    frames.validated().unwrap();
}
