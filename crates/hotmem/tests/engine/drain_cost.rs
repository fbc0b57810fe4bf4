//! Tests that draining boot memory costs as much for each frame in a large machine as in a small one.

use crate::instruction_count;
use hotmem::*;
use hotmem_testkit::RawRanges as _;
use hotmem_testkit::{DISTANT_PFN, Memory, PAGEBLOCK, SECTION, range};

const BOOT_FRAMES: u64 = 4 * SECTION;
const SIZE_VARIABLE: &str = "HOTMEM_DRAIN_COST_GIB";

/// A kernel that needs none of the frames that are to be migrated.
struct FreeingHooks<'f> {
    frames: &'f Frames<OneCpu>,
    freed: u64,
}

impl Hooks for FreeingHooks<'_> {
    fn migrate(&mut self, used: PfnRange) -> Migration {
        self.frames.free_range(used).unwrap();
        self.freed += used.frames();
        Migration::Freed
    }
}

/// Takes four pageblocks of boot memory offline in which every second frame is in use, in a machine
/// with `gib` GiB of other memory.
fn drain(gib: u64) {
    let memory = Memory::new(BOOT_FRAMES);
    let frames = Frames::new(OneCpu);
    let mut hotplug = hotmem_testkit::boot(&frames, &memory, BOOT_FRAMES);
    hotmem_testkit::plug(&mut hotplug, range(DISTANT_PFN, Bytes::gib(gib).frames()));
    let target = range(3 * SECTION + 8 * PAGEBLOCK, 4 * PAGEBLOCK);
    for frame in target.chunks(1).step_by(2) {
        frames.alloc_range(AllocRequest::frames(1).at(frame.start())).unwrap();
    }
    let mut offline = hotplug.offline(target).unwrap();
    counted_drain(&mut hotplug, &frames, &mut offline);
}

#[inline(never)]
fn counted_drain<'f>(
    hotplug: &mut Hotplug<'f, OneCpu>,
    frames: &Frames<OneCpu>,
    offline: &mut Offline<'f, OneCpu>,
) {
    let mut hooks = FreeingHooks { frames, freed: 0 };
    while let Progress::Working = offline.poll(hotplug, &mut hooks, Budget { pageblocks: 1 }) {}
    assert_eq!(offline.poll(hotplug, &mut hooks, Budget::UNLIMITED), Progress::Idle);
    assert_eq!(hooks.freed, 2 * PAGEBLOCK);
}

#[test]
fn a_frame_of_boot_memory_costs_the_same_beside_4_tib_as_beside_64_gib() {
    if let Ok(gib) = std::env::var(SIZE_VARIABLE) {
        return drain(gib.parse().unwrap());
    }
    if !instruction_count::can_count() {
        return;
    }
    let test = "drain_cost::a_frame_of_boot_memory_costs_the_same_beside_4_tib_as_beside_64_gib";
    let [small, large] = ["64", "4096"].map(|gib| {
        let count = instruction_count::instructions(test, "counted_drain", (SIZE_VARIABLE, gib));
        count / (2 * PAGEBLOCK) as f64
    });
    println!("{small:.0} instructions for each frame beside 64 GiB, {large:.0} beside 4 TiB");
    assert!(
        small > 100.0 && large <= 1.1 * small,
        "{large:.0} instructions beside 4 TiB, {small:.0} beside 64 GiB"
    );
}
