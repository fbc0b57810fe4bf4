//! Tests freeing memory that boot reserved. The zone's count `managed` must be exact after each
//! call, also after a refused call.

use hotmem::*;
use hotmem_testkit::RawHotplugCalls as _;
use hotmem_testkit::RawRanges as _;
use hotmem_testkit::Validated as _;
use hotmem_testkit::{Memory, PAGEBLOCK, SECTION, range};

/// Runs `test` on a machine of three sections. The second is an initial ramdisk, and the last
/// frames of the first are reserved for firmware.
fn on_a_machine(test: impl FnOnce(&Frames<OneCpu>, &mut Hotplug<'_, OneCpu>)) {
    let bytes =
        |range: PfnRange| BootRange { start: range.start().phys_addr(), len: range.bytes() };
    let ram = [bytes(range(0, 3 * SECTION))];
    let reserved = [bytes(ramdisk()), bytes(firmware())];
    let memory = Memory::new(3 * SECTION);
    let frames = Frames::new(OneCpu);
    let map = BootMap { reserved: &reserved, ..BootMap::from(&ram) };
    let mut hotplug = hotmem_testkit::start(&frames, memory.direct_map(), map).unwrap();
    test(&frames, &mut hotplug);
    frames.validated().unwrap();
}

fn ramdisk() -> PfnRange {
    range(SECTION, SECTION)
}

fn firmware() -> PfnRange {
    range(SECTION - 3, 3)
}

fn managed(hotplug: &Hotplug<'_, OneCpu>) -> u64 {
    hotplug.zone(NodeId::ZERO, Zone::Kernel).managed
}

fn refused(range: PfnRange, kind: RangeErrorKind) -> Result<(), RangeError> {
    Err(RangeError { range, kind })
}

#[test]
fn freeing_reserved_memory_twice_is_refused_and_not_counted() {
    on_a_machine(|_, hotplug| {
        let before = managed(hotplug);
        assert_eq!(before, 2 * SECTION - 3);
        let (first, remaining) = ramdisk().split_at(range(SECTION + PAGEBLOCK, 1).start());
        hotplug.free_reserved_range(first).unwrap();
        assert_eq!(managed(hotplug), before + PAGEBLOCK);
        for _ in 0..3 {
            let all = ramdisk();
            assert_eq!(
                hotplug.free_reserved_range(all),
                refused(first, RangeErrorKind::NotReserved)
            );
            assert_eq!(managed(hotplug), before + PAGEBLOCK);
        }
        hotplug.free_reserved_range(remaining).unwrap();
        assert_eq!(managed(hotplug), 3 * SECTION - 3);
    });
}

#[test]
fn memory_that_boot_did_not_reserve_is_refused() {
    on_a_machine(|frames, hotplug| {
        let before = managed(hotplug);
        let counts = frames.counts();
        let allocated = frames.alloc_range(AllocRequest::frames(1)).unwrap();
        let counted = frames.counts();
        for wrong in [allocated, range(3 * SECTION, 1), range(2 * SECTION, PAGEBLOCK)] {
            assert_eq!(
                hotplug.free_reserved_range(wrong),
                refused(wrong, RangeErrorKind::NotReserved)
            );
        }
        let half_reserved = range(SECTION - 4, 2);
        assert_eq!(
            hotplug.free_reserved_range(half_reserved),
            refused(half_reserved, RangeErrorKind::NotReserved)
        );
        let empty = range(SECTION, 0);
        assert_eq!(hotplug.free_reserved_range(empty), refused(empty, RangeErrorKind::Empty));
        assert_eq!((managed(hotplug), frames.counts()), (before, counted));
        frames.free_range(allocated).unwrap();
        assert_eq!(frames.counts().free, counts.free);
    });
}

#[test]
fn memory_that_was_freed_by_free_raw_is_refused_and_not_counted() {
    on_a_machine(|frames, hotplug| {
        let before = managed(hotplug);
        let freed = range(SECTION + PAGEBLOCK, 2 * PAGEBLOCK);
        frames.free_range(freed).unwrap();
        let counts = frames.counts();
        // The reserved memory below `freed` stays in use.
        let block = range(SECTION + PAGEBLOCK, PAGEBLOCK);
        assert_eq!(
            hotplug.free_reserved_range(ramdisk()),
            refused(block, RangeErrorKind::NotAllocated)
        );
        assert_eq!((managed(hotplug), frames.counts()), (before, counts));
    });
}

#[test]
fn memory_that_was_freed_by_free_raw_is_counted_correctly_when_it_goes_offline() {
    on_a_machine(|frames, hotplug| {
        frames.free_range(ramdisk()).unwrap();
        assert_eq!(managed(hotplug), 2 * SECTION - 3);
        let mut offline = hotplug.offline(ramdisk()).unwrap();
        let done = offline.poll(hotplug, &mut NoHooks, Budget::UNLIMITED);
        assert_eq!(done, Progress::Ready(ramdisk()));
        let zone = hotplug.zone(NodeId::ZERO, Zone::Kernel);
        assert_eq!((zone.present, zone.managed), (2 * SECTION, 2 * SECTION - 3));
        // The memory can come online again like any other memory.
        hotplug.online(ramdisk(), OnlineType::Kernel, &mut NoHooks).unwrap();
        assert_eq!(managed(hotplug), 3 * SECTION - 3);
        let refusal = refused(range(SECTION, PAGEBLOCK), RangeErrorKind::NotReserved);
        assert_eq!(hotplug.free_reserved_range(ramdisk()), refusal);
        hotplug.free_reserved_range(firmware()).unwrap();
        assert_eq!(managed(hotplug), 3 * SECTION);
    });
}

#[test]
fn reserved_memory_can_be_freed_in_parts_that_cross_pageblocks() {
    on_a_machine(|frames, hotplug| {
        let before = managed(hotplug);
        let mut freed = 0;
        for part in [range(SECTION, 1), range(SECTION + 1, PAGEBLOCK), range(SECTION - 3, 3)] {
            hotplug.free_reserved_range(part).unwrap();
            freed += part.frames();
            assert_eq!(managed(hotplug), before + freed);
            assert_eq!(
                hotplug.free_reserved_range(part).unwrap_err().kind,
                RangeErrorKind::NotReserved
            );
            assert_eq!(managed(hotplug), before + freed);
        }
        assert_eq!(frames.counts().used, 3 * SECTION - frames.counts().free);
    });
}
