//! Tests the states of memory blocks of 128 MiB and more.

use hotmem::*;
use hotmem_testkit::RawRanges as _;
use hotmem_testkit::{Memory, PAGEBLOCK, SECTION, pfn, range};

fn states(
    hotplug: &Hotplug<'_, OneCpu>,
    frames: u64,
) -> Vec<(u64, MemoryBlockState, Option<Zone>)> {
    let blocks = hotplug.memory_blocks(frames);
    blocks.map(|b| (b.range.start().number() / SECTION, b.state, b.zone)).collect()
}

#[test]
fn the_state_of_a_memory_block_is_that_of_its_sections_or_mixed() {
    let (frames, memory) = (Frames::new(OneCpu), Memory::new(2 * SECTION));
    let ram = [BootRange { start: 0, len: range(0, SECTION).bytes() }];
    let map = BootMap::from(&ram);
    let mut hotplug = hotmem_testkit::start(&frames, memory.direct_map(), map).unwrap();
    hotplug.announce(range(4 * SECTION, 8 * SECTION)).unwrap();
    let section = |n| range(n * SECTION, SECTION);
    for (n, kind) in [(4, OnlineType::Movable), (5, OnlineType::Kernel), (6, OnlineType::Offline)] {
        hotplug.add(section(n)).unwrap();
        hotplug.online(section(n), kind, &mut NoHooks).unwrap();
    }
    // Only one pageblock of the last memory block is present.
    hotplug.add(range(8 * SECTION, PAGEBLOCK)).unwrap();
    hotplug.online(range(8 * SECTION, PAGEBLOCK), OnlineType::Movable, &mut NoHooks).unwrap();
    let held = frames.isolate(range(4 * SECTION, PAGEBLOCK)).unwrap();
    use MemoryBlockState::{GoingOffline, Mixed, Offline, Online};
    assert_eq!(
        states(&hotplug, SECTION),
        [
            (0, Online, Some(Zone::Kernel)),
            (4, GoingOffline, Some(Zone::Movable)),
            (5, Online, Some(Zone::Kernel)),
            (6, Offline, None),
            (8, Online, Some(Zone::Movable)),
        ]
    );
    held.release();
    assert_eq!(
        states(&hotplug, 4 * SECTION),
        [(0, Online, Some(Zone::Kernel)), (4, Mixed, None), (8, Online, Some(Zone::Movable))]
    );
    // Sizes that are invalid count as the nearest valid size.
    assert_eq!(states(&hotplug, 0), states(&hotplug, SECTION));
    assert_eq!(states(&hotplug, u64::MAX), [(0, Online, Some(Zone::Kernel)), (4, Mixed, None)]);
}

#[test]
fn memory_that_is_reporting_or_being_added_does_not_count_as_going_offline() {
    let (frames, memory) = (Frames::new(OneCpu), Memory::new(SECTION));
    let ram = [BootRange { start: 0, len: range(0, SECTION).bytes() }];
    let map = BootMap::from(&ram);
    let mut hotplug = hotmem_testkit::start(&frames, memory.direct_map(), map).unwrap();
    let added = range(4 * SECTION, SECTION);
    hotplug.announce(added).unwrap();
    hotplug.add(range(4 * SECTION, PAGEBLOCK)).unwrap();
    // Allow the reporter to give all free memory to the host. The default `reporting_divisor`
    // allows an eighth, which in the small test geometry is less than a pageblock.
    let settings =
        report::ReporterSettings { reporting_divisor: 1, ..report::ReporterSettings::EAGER };
    let contents = Contents::Undefined;
    let mut reporter = report::Reporter::new(&frames, settings, contents).unwrap();
    let report::Step::Ready(Ok(batch)) = reporter.step(std::time::Duration::ZERO) else {
        panic!("boot memory was not reported")
    };
    let addition = hotplug.prepare_add(range(4 * SECTION + PAGEBLOCK, PAGEBLOCK)).unwrap();
    assert_eq!(
        states(&hotplug, SECTION),
        [(0, MemoryBlockState::Online, Some(Zone::Kernel)), (4, MemoryBlockState::Offline, None)]
    );
    drop(addition);
    reporter.reported(batch);
}

#[test]
fn a_memory_block_names_its_blocker() {
    let (frames, memory) = (Frames::new(OneCpu), Memory::new(4 * SECTION));
    let ram = [BootRange { start: 0, len: range(0, SECTION).bytes() }];
    let map = BootMap::from(&ram);
    let mut hotplug = hotmem_testkit::start(&frames, memory.direct_map(), map).unwrap();
    let added = range(SECTION, SECTION);
    hotplug.announce(added).unwrap();
    hotplug.add(added).unwrap();
    hotplug.online(added, OnlineType::Kernel, &mut NoHooks).unwrap();
    let block = |h: &Hotplug<'_, OneCpu>| h.memory_blocks(SECTION).nth(1).unwrap();
    assert_eq!(block(&hotplug).blocker, None);
    let target = pfn(SECTION + PAGEBLOCK + 1);
    let used = frames.alloc_range(AllocRequest::frames(1).at(target)).unwrap();
    let blocker = block(&hotplug).blocker.unwrap();
    assert!(blocker.range.covers(used), "{blocker}");
    frames.free_range(used).unwrap();
    assert_eq!(block(&hotplug).blocker, None);
    // Frames in use in movable memory do not block the removal: they can be migrated.
    let mut offline = hotplug.offline(added).unwrap();
    assert_eq!(offline.poll(&mut hotplug, &mut NoHooks, Budget::UNLIMITED), Progress::Ready(added));
    hotplug.online(added, OnlineType::Movable, &mut NoHooks).unwrap();
    frames.alloc_range(AllocRequest::frames(1).movable().at(target)).unwrap();
    assert_eq!(block(&hotplug).blocker, None);
}
