//! Tests all steps that a range goes through: announce, add, online, allocate, free, shrink,
//! remove, withdraw.

use hotmem::RangeErrorKind;
use hotmem::*;
use hotmem_testkit::RawRanges as _;
use hotmem_testkit::Validated as _;
use hotmem_testkit::region_range;
use hotmem_testkit::{Memory, SECTION, boot, range};

/// Runs `test` on an instance with memory for `sections` sections. The first is boot memory.
fn with_instance(sections: u64, test: impl FnOnce(&Frames<OneCpu>, Hotplug<'_, OneCpu>)) {
    let memory = Memory::new(sections * SECTION);
    let frames = Frames::new(OneCpu);
    let hotplug = boot(&frames, &memory, SECTION);
    test(&frames, hotplug);
}

#[test]
fn memory_is_added_used_and_removed() {
    with_instance(8, |frames, mut hotplug| {
        let booted = frames.validated().unwrap();
        assert_eq!(booted.online, SECTION);

        let region = hotplug.announce(range(2 * SECTION, 4 * SECTION)).unwrap();
        let plugged = range(2 * SECTION, 3 * SECTION);
        hotplug.add(plugged).unwrap();
        hotplug.online(plugged, OnlineType::Movable, &mut NoHooks).unwrap();
        let before = frames.validated().unwrap();
        assert_eq!(before.online, 4 * SECTION);
        assert_eq!(before.movable, 3 * SECTION);

        let one = frames.alloc_range(AllocRequest::frames(1).movable()).unwrap();
        let three = frames.alloc_range(AllocRequest::frames(3).movable()).unwrap();
        let block = frames
            .alloc_range(AllocRequest::order(geometry::PAGEBLOCK_FRAMES.ilog2()).movable())
            .unwrap();
        assert!(plugged.covers(one) && plugged.covers(three) && plugged.covers(block));
        frames.validated().unwrap();
        for used in [one, three, block] {
            frames.free_range(used).unwrap();
            assert_eq!(frames.free_range(used).unwrap_err().kind, RangeErrorKind::NotAllocated);
        }
        frames.validated().unwrap();

        let mut removed = 0;
        let mut shrink = Shrink::new(ShrinkOptions {
            frames: plugged.frames(),
            ..region_range(&hotplug, region).unwrap().into()
        });
        loop {
            match shrink.poll(&mut hotplug, &mut NoHooks, Budget::UNLIMITED) {
                Progress::Ready(removal) => {
                    removed += removal.range().frames();
                    hotplug.commit_remove(removal);
                }
                Progress::Working => {}
                ended => {
                    assert_eq!(
                        (shrink.frames_left(), hotmem_testkit::blocker_of(ended)),
                        (0, None)
                    );
                    break;
                }
            }
        }
        assert_eq!(removed, plugged.frames());
        let after = frames.validated().unwrap();
        assert_eq!(after.online, booted.online);
        hotplug.withdraw(region).unwrap();
        frames.validated().unwrap();
    });
}

#[test]
fn all_boot_memory_can_be_allocated_once() {
    with_instance(1, |frames, _| {
        let bitmaps = || {
            let metadata = frames.metadata().map(|metadata| metadata.frames.frames());
            metadata.sum::<u64>()
        };
        let (mut counts, before) = (frames.validated().unwrap(), bitmaps());
        let mut allocated = Vec::new();
        while let Ok(frame) = frames.alloc_range(AllocRequest::frames(1)) {
            allocated.push(frame);
        }
        // The first pageblocks that are divided need frames for their bitmaps.
        counts.free -= bitmaps() - before;
        assert_eq!(allocated.len() as u64, counts.free);
        assert_eq!(frames.alloc_range(AllocRequest::frames(1)), Err(AllocError::OutOfMemory));
        allocated.sort_by_key(|f| f.start());
        allocated.dedup();
        assert_eq!(allocated.len() as u64, counts.free);
        for frame in allocated {
            frames.free_range(frame).unwrap();
        }
        assert_eq!(frames.validated().unwrap().free, counts.free);
    });
}
