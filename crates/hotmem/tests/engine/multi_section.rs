//! Tests allocations of more than one section.

use hotmem::*;
use hotmem_testkit::RawRanges as _;
use hotmem_testkit::Validated as _;
use hotmem_testkit::{Memory, PAGEBLOCK, SECTION, boot, plug, range};

/// Runs `test` on an instance whose sections from 1 to `sections` are movable and free.
fn with_instance(sections: u64, test: impl FnOnce(&Frames<OneCpu>)) {
    let (frames, memory) = (Frames::new(OneCpu), Memory::new((sections + 1) * SECTION));
    let mut hotplug = boot(&frames, &memory, SECTION);
    plug(&mut hotplug, range(SECTION, sections * SECTION));
    test(&frames);
    frames.validated().unwrap();
}

fn request_sections(n: u64) -> AllocRequest {
    AllocRequest::frames(n * SECTION).movable()
}

#[test]
fn a_run_may_include_the_section_that_the_cpus_hint_names() {
    with_instance(4, |frames| {
        // This allocation makes the first section the CPU's hint, so no bit of the tree leads to
        // it.
        let block = frames.alloc_range(AllocRequest::frames(PAGEBLOCK).movable()).unwrap();
        assert_eq!(block.start().number(), SECTION);
        frames.free_range(block).unwrap();
        assert_eq!(frames.alloc_range(request_sections(4)), Ok(range(SECTION, 4 * SECTION)));
    });
}

#[test]
fn a_run_begins_above_the_pageblocks_in_use() {
    with_instance(6, |frames| {
        let used_frame = Pfn::new(3 * SECTION + PAGEBLOCK).unwrap();
        frames.alloc_range(AllocRequest::frames(1).movable().at(used_frame)).unwrap();
        assert_eq!(frames.alloc_range(request_sections(3)), Ok(range(4 * SECTION, 3 * SECTION)));
        assert_eq!(frames.alloc_range(request_sections(2)), Ok(range(SECTION, 2 * SECTION)));
        assert_eq!(frames.alloc_range(request_sections(2)), Err(AllocError::OutOfMemory));
    });
}

#[test]
fn all_memory_is_allocated_and_allocated_again() {
    with_instance(6, |frames| {
        for _ in 0..2 {
            let allocated: Vec<_> =
                (0..3).map(|_| frames.alloc_range(request_sections(2)).unwrap()).collect();
            let expected = [1, 3, 5].map(|n| range(n * SECTION, 2 * SECTION));
            assert_eq!(allocated, expected);
            assert_eq!(frames.alloc_range(request_sections(2)), Err(AllocError::OutOfMemory));
            allocated.into_iter().for_each(|allocated| frames.free_range(allocated).unwrap());
        }
    });
}
