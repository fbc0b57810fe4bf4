//! Tests that a removal can be split, so that a device accepts one part and refuses the other.

use hotmem::*;
use hotmem_testkit::Validated as _;
use hotmem_testkit::{Cpus, Memory, PAGEBLOCK, SECTION, boot, pfn, range};

const BOOT_FRAMES: u64 = 2 * SECTION;
const MEMORY_FRAMES: u64 = 12 * SECTION;

fn with_instance(test: impl FnOnce(&mut Hotplug<'_, Cpus>)) {
    let memory = Memory::new(MEMORY_FRAMES);
    let frames = Frames::new(Cpus);
    let mut hotplug = boot(&frames, &memory, BOOT_FRAMES);
    test(&mut hotplug);
    frames.validated().expect("the instance is consistent");
}

#[test]
fn a_removal_is_split_in_two() {
    with_instance(|hotplug| {
        let all = range(BOOT_FRAMES, 2 * SECTION);
        hotplug.announce(all).expect("the range can be announced");
        hotplug.add(all).expect("the range is announced");
        let removal = hotplug.prepare_remove(all).expect("the range is offline");
        let (removed, remaining_removal) = removal
            .split_at(pfn(BOOT_FRAMES + PAGEBLOCK + 1))
            .expect("the removal has no descriptors");
        assert_eq!(
            [removed.range(), remaining_removal.range()].map(PfnRange::frames),
            [PAGEBLOCK, 2 * SECTION - PAGEBLOCK]
        );
        let (removed_range, remaining_range) = (removed.range(), remaining_removal.range());
        hotplug.commit_remove(removed);
        hotplug.abandon_remove(remaining_removal, &mut NoHooks);
        let state = |range: PfnRange| hotplug.state_at(range.start(), range.end());
        assert_eq!(state(removed_range), (removed_range, State::Absent));
        assert_eq!(state(remaining_range), (remaining_range, State::Offline));
    });
}
