//! Tests that requests to remove memory leave `Settings::min_free_frames` frames free.

use hotmem::*;
use hotmem_testkit::RawRanges as _;
use hotmem_testkit::Validated as _;
use hotmem_testkit::{Memory, PAGEBLOCK, SECTION, range};

const BOOT_FRAMES: u64 = SECTION;
const HOTPLUG_FRAMES: u64 = 4 * SECTION;

/// A kernel that migrates every frame.
struct MigratingHooks<'f>(&'f Frames<OneCpu>);

impl Hooks for MigratingHooks<'_> {
    fn migrate(&mut self, used: PfnRange) -> Migration {
        for frame in used.chunks(1) {
            let Ok(_) = self.0.alloc_range(AllocRequest::frames(1).movable()) else {
                return Migration::Retry;
            };
            self.0.free_range(frame).unwrap();
        }
        Migration::Moved
    }
}

/// Runs `test` on an instance whose free memory is all in its hotplugged memory, where a few frames
/// of each section are in use.
fn with_instance(test: impl FnOnce(&Frames<OneCpu>, &mut Hotplug<'_, OneCpu>, PfnRange)) {
    let (frames, memory) = (Frames::new(OneCpu), Memory::new(BOOT_FRAMES + HOTPLUG_FRAMES));
    let mut hotplug = hotmem_testkit::boot(&frames, &memory, BOOT_FRAMES);
    let hot = range(BOOT_FRAMES, HOTPLUG_FRAMES);
    hotplug.announce(hot).unwrap();
    while frames.alloc_range(AllocRequest::frames(1)).is_ok() {}
    hotplug.add(hot).unwrap();
    hotplug.online(hot, OnlineType::Movable, &mut NoHooks).unwrap();
    for section in hot.chunks(SECTION) {
        frames.alloc_range(AllocRequest::frames(3).movable().at(section.start())).unwrap();
    }
    test(&frames, &mut hotplug, hot);
    frames.validated().unwrap();
}

#[test]
fn a_shrink_leaves_min_free_frames_free_and_not_a_pageblock_more() {
    for floor in [0, 1, PAGEBLOCK, SECTION - 1, SECTION + PAGEBLOCK + 7, 3 * SECTION] {
        with_instance(|frames, hotplug, hot| {
            hotplug.settings.min_free_frames = floor;
            let mut shrink = Shrink::new(ShrinkOptions { frames: HOTPLUG_FRAMES, ..hot.into() });
            let (remaining, blocker) = loop {
                match shrink.poll(hotplug, &mut MigratingHooks(frames), Budget::UNLIMITED) {
                    Progress::Ready(removal) => {
                        hotplug.commit_remove(removal);
                    }
                    Progress::Working => {}
                    ended => break (shrink.frames_left(), hotmem_testkit::blocker_of(ended)),
                }
            };
            let free = frames.counts().free;
            assert!(free >= floor, "{free} frames are free, the floor is {floor}");
            // The removal of another pageblock would have left fewer frames free than the floor.
            assert!(
                remaining > 0 && free < floor + PAGEBLOCK,
                "{free} frames are free, the floor is {floor}, {remaining} remain to be removed"
            );
            assert!(matches!(
                blocker,
                Some(Blocker { kind: BlockerKind::NotEnoughFree { .. }, .. })
            ));
        });
    }
}

#[test]
fn a_range_goes_offline_only_if_min_free_frames_stay_free() {
    with_instance(|frames, hotplug, _| {
        let top = range(BOOT_FRAMES + 2 * SECTION, 2 * SECTION);
        // In each section of `top`, 4 frames are not free: 3 in use, and the frame of its
        // self-hosted bitmaps. The 3 are migrated, so they take 3 free frames elsewhere.
        let free_after = frames.counts().free - (top.frames() - 2 * 4) - 2 * 3;
        hotplug.settings.min_free_frames = free_after + 1;
        let mut offline = hotplug.offline(top).unwrap();
        let progress = offline.poll(hotplug, &mut MigratingHooks(frames), Budget::UNLIMITED);
        let Progress::Pending(Blocker {
            range: last_section,
            kind: BlockerKind::NotEnoughFree { live, free },
        }) = progress
        else {
            panic!("{progress:?}");
        };
        assert_eq!((last_section, live), (range(BOOT_FRAMES + 3 * SECTION, SECTION), free + 1));
        // If the floor is one frame lower, the request continues.
        hotplug.settings.min_free_frames = free_after;
        let progress = offline.poll(hotplug, &mut MigratingHooks(frames), Budget::UNLIMITED);
        assert_eq!((progress, frames.counts().free), (Progress::Ready(top), free_after));
    });
}
