//! Tests that memory beyond the mappable range is refused at boot and when it is announced,
//! and that a mapping may be a trait object.

use hotmem::*;
use hotmem::{RangeError, RangeErrorKind};
use hotmem_testkit::{Memory, PAGEBLOCK, SECTION, pfn, range, start};

const BOOT_FRAMES: u64 = 2 * SECTION;

fn ram(start: u64, frames: u64) -> [BootRange; 1] {
    let ram = range(start, frames);
    [BootRange { start: ram.start().phys_addr(), len: ram.bytes() }]
}

#[test]
fn memory_outside_the_mappable_range_is_not_announced() {
    let memory = Memory::new(4 * SECTION);
    let frames = Frames::new(OneCpu);
    let ram = ram(0, BOOT_FRAMES);
    let mut hotplug = start(&frames, memory.mapping(), &ram).unwrap();
    assert_eq!(hotplug.mapping().mappable_range(), range(0, 4 * SECTION));
    let before = frames.counts().words;
    for beyond in [
        range(4 * SECTION, PAGEBLOCK),
        range(4 * SECTION - PAGEBLOCK, 2 * PAGEBLOCK),
        range(Pfn::LIMIT.number() - PAGEBLOCK, PAGEBLOCK),
    ] {
        assert_eq!(
            hotplug.announce(beyond),
            Err(AnnounceError::Range(RangeError {
                range: beyond,
                kind: RangeErrorKind::Unreachable
            }))
        );
    }
    assert_eq!((frames.counts().words, hotplug.regions().count()), (before, 1));
    hotplug.announce(range(4 * SECTION - PAGEBLOCK, PAGEBLOCK)).unwrap();
}

#[test]
fn ram_outside_the_mappable_range_is_refused_at_boot() {
    let memory = Memory::new(2 * SECTION);
    let [beyond] = ram(SECTION, 2 * SECTION);
    let frames = Frames::new(OneCpu);
    let refused = start(&frames, memory.mapping(), &[beyond]).err();
    assert_eq!(refused, Some(BootError::Unreachable(beyond)));
    // RAM below the mappable range is refused as well.
    // SAFETY: the memory of the upper section is readable and writable, and only the engine uses it.
    let upper_section = || unsafe { AlwaysMapped::new(memory.start(), range(SECTION, SECTION)) };
    let [below] = ram(0, SECTION);
    let refused = start(&frames, upper_section(), &[below]).err();
    assert_eq!(refused, Some(BootError::Unreachable(below)));
    assert_eq!(frames.counts(), Counts::default());
    let upper = ram(SECTION, SECTION);
    start(&frames, upper_section(), &upper).unwrap();
    let owned = frames.alloc(AllocRequest::frames(1)).unwrap();
    assert!(owned.range().start() >= pfn(SECTION));
}

#[test]
fn a_mapping_may_be_a_trait_object() {
    let memory = Memory::new(4 * SECTION);
    let frames = Frames::new(OneCpu);
    let mut mapping = memory.mapping();
    let mapping: &mut dyn Map = &mut mapping;
    let mut hotplug = start(&frames, mapping, &ram(0, BOOT_FRAMES)).unwrap();
    let hooks: &mut dyn Hooks = &mut NoHooks;
    let plugged = range(2 * SECTION, SECTION);
    hotplug.announce(plugged).unwrap();
    hotplug.add(plugged).unwrap();
    hotplug.online(plugged, OnlineType::Movable, hooks).unwrap();
    let mut offline = hotplug.offline(plugged).unwrap();
    let done = offline.poll(&mut hotplug, hooks, Budget::UNLIMITED);
    assert_eq!(done, Progress::Ready(plugged));
    hotplug.remove(plugged).unwrap();
}
