//! Tests that a range is taken offline window by window, and that frames are not migrated from one
//! window to another.

use hotmem::*;
use hotmem_testkit::RawRanges as _;
use hotmem_testkit::Validated as _;
use hotmem_testkit::{Memory, SECTION, numbers, pfn, range};

const BOOT_FRAMES: u64 = SECTION;
const SECTIONS: u64 = 24;

/// A kernel that migrates every frame, and counts the frames.
struct MigratingHooks<'f> {
    frames: &'f Frames<OneCpu>,
    migrated_frames: u64,
}

impl Hooks for MigratingHooks<'_> {
    fn migrate(&mut self, used: PfnRange) -> Migration {
        for frame in used.chunks(1) {
            self.frames.alloc_range(AllocRequest::frames(1).movable()).unwrap();
            self.frames.free_range(frame).unwrap();
            self.migrated_frames += 1;
        }
        Migration::Moved
    }
}

#[test]
fn frames_in_a_long_range_are_migrated_once() {
    // Take ranges at the bottom, in the middle and at the top of movable memory offline.
    for first in [0, SECTIONS / 4, SECTIONS / 2] {
        let memory = Memory::new(BOOT_FRAMES + SECTIONS * SECTION);
        let frames = Frames::new(OneCpu);
        let mut hotplug = hotmem_testkit::boot(&frames, &memory, BOOT_FRAMES);
        let hot = range(BOOT_FRAMES, SECTIONS * SECTION);
        hotplug.announce(hot).unwrap();
        hotplug.add(hot).unwrap();
        hotplug.online(hot, OnlineType::Movable, &mut NoHooks).unwrap();
        let target = range(BOOT_FRAMES + first * SECTION, SECTIONS / 2 * SECTION);
        let mut live = 0;
        for section in target.chunks(SECTION) {
            for frame in numbers(section).step_by(7).take(5) {
                frames.alloc_range(AllocRequest::frames(1).movable().at(pfn(frame))).unwrap();
                live += 1;
            }
        }
        let mut kernel = MigratingHooks { frames: &frames, migrated_frames: 0 };
        let mut offline = hotplug.offline(target).unwrap();
        let done = offline.poll(&mut hotplug, &mut kernel, Budget::UNLIMITED);
        assert_eq!(done, Progress::Ready(target));
        assert_eq!(kernel.migrated_frames, live);
        frames.validated().unwrap();
    }
}
