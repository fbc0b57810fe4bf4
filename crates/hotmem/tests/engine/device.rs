//! Tests device memory: it is never allocated, may share a section with RAM, and can be converted
//! to RAM and back.

use hotmem::*;
use hotmem::{RangeError, RangeErrorKind};
use hotmem_testkit::RawHotplugCalls as _;
use hotmem_testkit::RawRanges as _;
use hotmem_testkit::{Memory, PAGEBLOCK, SECTION, Snapshot, boot, pfn, range};

/// The number of sections of boot memory.
const BOOT_SECTIONS: u64 = 1;
/// The number of sections of boot memory and of all memory that may be plugged.
const SECTIONS: u64 = 6;
/// The first frame of a section whose first and last quarter are RAM, and whose other quarters are
/// device memory.
const SHARED_SECTION_START: u64 = 2 * SECTION;
const QUARTER_SECTION: u64 = SECTION / 4;

fn device() -> PfnRange {
    range(SHARED_SECTION_START + QUARTER_SECTION, 2 * QUARTER_SECTION)
}

/// Runs `test` on an instance in which the section at [`SHARED_SECTION_START`] is plugged: online
/// movable RAM on both sides of device memory.
fn with_instance(test: impl FnOnce(&Frames<OneCpu>, &mut Hotplug<'_, OneCpu>)) {
    let memory = Memory::new(SECTIONS * SECTION);
    let frames = Frames::new(OneCpu);
    let mut hotplug = boot(&frames, &memory, BOOT_SECTIONS * SECTION);
    hotplug.announce(range(SHARED_SECTION_START, 3 * SECTION)).unwrap();
    for side in [
        range(SHARED_SECTION_START, QUARTER_SECTION),
        range(SHARED_SECTION_START + 3 * QUARTER_SECTION, QUARTER_SECTION),
    ] {
        hotplug.add(side).unwrap();
        hotplug.online(side, OnlineType::Movable, &mut NoHooks).unwrap();
    }
    hotplug.add(AddRequest { device: true, ..device().into() }).unwrap();
    test(&frames, &mut hotplug);
}

fn snapshot(hotplug: &Hotplug<'_, OneCpu>) -> Snapshot {
    Snapshot::of(hotplug, SECTIONS * SECTION, &[])
}

fn take_offline(hotplug: &mut Hotplug<'_, OneCpu>, range: PfnRange) {
    let mut offline = hotplug.offline(range).unwrap();
    let done = offline.poll(hotplug, &mut NoHooks, Budget::UNLIMITED);
    assert_eq!(done, Progress::Ready(range));
}

fn state(hotplug: &Hotplug<'_, OneCpu>, range: PfnRange) -> State {
    let (run, state) = hotplug.state_at(range.start(), range.end());
    assert_eq!(run, range, "{state:?}");
    state
}

#[test]
fn device_memory_is_a_hole_in_its_zone_and_is_never_allocated() {
    with_instance(|frames, hotplug| {
        let zone = hotplug.zone(NodeId::ZERO, Zone::Movable);
        assert_eq!(
            (zone.spanned, zone.online),
            (range(SHARED_SECTION_START, SECTION), 2 * QUARTER_SECTION)
        );
        assert!(!zone.contiguous);
        assert_eq!(state(hotplug, device()), State::Device);
        assert_eq!(
            frames.counts_in(device()),
            Counts { announced: device().frames(), ..Counts::default() }
        );
        while let Ok(allocated) = frames.alloc_range(AllocRequest::frames(1).movable()) {
            assert!(!allocated.overlaps(device()), "{allocated}");
        }
        let at = AllocRequest::frames(1).at(device().start()).movable();
        let not_free = AllocError::NotFree(range(device().start().number(), 1));
        assert_eq!(frames.alloc_range(at), Err(not_free));
        let block = hotplug.memory_blocks(SECTION).find(|block| block.range.overlaps(device()));
        let block = block.unwrap();
        assert_eq!((block.state, block.device), (MemoryBlockState::Online, device().frames()));
    });
}

#[test]
fn calls_for_ram_are_refused_for_device_memory_and_change_nothing() {
    with_instance(|frames, hotplug| {
        let before = snapshot(hotplug);
        let first = range(device().start().number(), PAGEBLOCK);
        let shared = range(SHARED_SECTION_START, SECTION);
        let hooks = &mut NoHooks;
        assert_eq!(
            hotplug.add(device()),
            Err(AddError::Range(RangeError { range: first, kind: RangeErrorKind::Device }))
        );
        assert_eq!(
            hotplug.add(AddRequest { device: true, ..device().into() }),
            Err(AddError::Range(RangeError { range: first, kind: RangeErrorKind::Device }))
        );
        let present = AddError::Range(RangeError {
            range: range(SHARED_SECTION_START, PAGEBLOCK),
            kind: RangeErrorKind::Present,
        });
        assert_eq!(hotplug.add(AddRequest { device: true, ..shared.into() }), Err(present));
        let not_present = RangeError { range: first, kind: RangeErrorKind::NotPresent };
        assert_eq!(hotplug.online(device(), OnlineType::Online, hooks), Err(not_present));
        assert_eq!(
            hotplug.offline(shared).err(),
            Some(RangeError { range: first, kind: RangeErrorKind::NotOnline })
        );
        assert_eq!(
            hotplug.remove(device()),
            Err(RangeError { range: first, kind: RangeErrorKind::NotPresent })
        );
        assert_eq!(
            hotplug.ram_to_device(device()),
            Err(RangeError { range: first, kind: RangeErrorKind::NotPresent })
        );
        let online = RangeError {
            range: range(SHARED_SECTION_START, PAGEBLOCK),
            kind: RangeErrorKind::Online,
        };
        assert_eq!(hotplug.ram_to_device(range(SHARED_SECTION_START, PAGEBLOCK)), Err(online));
        let poison = hotplug.poison(device().start());
        assert_eq!(
            poison,
            Err(RangeError {
                range: PfnRange::with_len(device().start(), 1).unwrap(),
                kind: RangeErrorKind::NotPresent
            })
        );
        let isolated = frames.isolate(device()).err();
        assert_eq!(isolated, Some(RangeError { range: first, kind: RangeErrorKind::NotOnline }));
        let foreign = RangeError { range: first, kind: RangeErrorKind::Foreign };
        assert_eq!(frames.free_range(first), Err(foreign));
        let region = hotplug.regions().nth(1).unwrap().0;
        assert_eq!(
            hotplug.withdraw(region),
            Err(RangeError {
                range: range(SHARED_SECTION_START, PAGEBLOCK),
                kind: RangeErrorKind::Present
            })
        );
        assert_eq!(snapshot(hotplug), before);
    });
}

#[test]
fn memory_that_is_not_device_memory_is_neither_detached_nor_made_ram() {
    with_instance(|_, hotplug| {
        let before = snapshot(hotplug);
        let start = device().start().number();
        let absent = range(SHARED_SECTION_START + SECTION, PAGEBLOCK);
        let held = hotplug.prepare_add(absent).unwrap();
        let unaligned = |range| (range, RangeError { range, kind: RangeErrorKind::Unaligned });
        let not_device = |range, at_fault| {
            (range, RangeError { range: at_fault, kind: RangeErrorKind::NotDevice })
        };
        let outside = range(5 * SECTION - PAGEBLOCK, 2 * PAGEBLOCK);
        for (range, error) in [
            unaligned(range(start, 0)),
            unaligned(range(start + 1, PAGEBLOCK)),
            unaligned(range(start, PAGEBLOCK + 1)),
            not_device(
                range(start - PAGEBLOCK, 2 * PAGEBLOCK),
                range(start - PAGEBLOCK, PAGEBLOCK),
            ),
            not_device(absent, absent),
            not_device(outside, outside),
            not_device(range(0, PAGEBLOCK), range(0, PAGEBLOCK)),
        ] {
            assert_eq!(hotplug.detach_raw(range), Err(error));
            let made_ram = hotplug.device_to_ram_raw(range, OnlineType::Offline, &mut NoHooks);
            assert_eq!(made_ram, Err(AddError::Range(error)));
        }
        assert_eq!(
            hotplug.add(AddRequest { device: true, ..absent.into() }),
            Err(AddError::Range(RangeError { range: absent, kind: RangeErrorKind::Held }))
        );
        drop(held);
        assert_eq!(snapshot(hotplug), before);
    });
}

#[test]
fn a_region_with_a_device_is_not_withdrawn() {
    with_instance(|_, hotplug| {
        for side in [
            range(SHARED_SECTION_START, QUARTER_SECTION),
            range(SHARED_SECTION_START + 3 * QUARTER_SECTION, QUARTER_SECTION),
        ] {
            take_offline(hotplug, side);
            hotplug.remove(side).unwrap();
        }
        let region = hotplug.regions().nth(1).unwrap().0;
        let first = range(device().start().number(), PAGEBLOCK);
        assert_eq!(
            hotplug.withdraw(region),
            Err(RangeError { range: first, kind: RangeErrorKind::Device })
        );
        hotplug.detach_raw(device()).unwrap();
        assert_eq!(state(hotplug, range(SHARED_SECTION_START, SECTION)), State::Absent);
        hotplug.withdraw(region).unwrap();
    });
}

#[test]
fn device_memory_becomes_ram_with_each_online_type_and_device_memory_again() {
    let contig = Policy::ContigZones { movable_node: false };
    let policies = [
        (contig, OnlineType::Offline, State::Offline, false),
        // The device memory lies within the span of the movable zone, so it becomes movable memory.
        (contig, OnlineType::Online, State::OnlineMovable, true),
        (Policy::AUTO_MOVABLE, OnlineType::Online, State::OnlineMovable, true),
        (contig, OnlineType::Kernel, State::Online, false),
        (contig, OnlineType::Movable, State::OnlineMovable, true),
    ];
    for (policy, kind, expected, contiguous) in policies {
        with_instance(|frames, hotplug| {
            hotplug.settings.policy = policy;
            let before = snapshot(hotplug);
            hotplug.device_to_ram_raw(device(), kind, &mut NoHooks).unwrap();
            assert_eq!(state(hotplug, device()), expected, "{policy:?} {kind:?}");
            let zone = hotplug.zone(NodeId::ZERO, Zone::Movable);
            assert_eq!(zone.contiguous, contiguous, "{policy:?} {kind:?}");
            if kind != OnlineType::Offline {
                let at = AllocRequest::frames(PAGEBLOCK).at(device().start()).movable();
                let allocated = frames.alloc_range(at).unwrap();
                // `NoHooks` migrates no frame in use, so the memory stays online.
                let mut offline = hotplug.offline(device()).unwrap();
                let progress = offline.poll(hotplug, &mut NoHooks, Budget::UNLIMITED);
                assert!(matches!(progress, Progress::Pending(_)), "{progress:?}");
                offline.cancel(hotplug, &mut NoHooks);
                assert_eq!(state(hotplug, device()), expected);
                frames.free_range(allocated).unwrap();
                take_offline(hotplug, device());
            }
            hotplug.ram_to_device(device()).unwrap();
            assert_eq!(snapshot(hotplug), before);
        });
    }
}

/// Hooks that refuse to put a range online if it contains this frame.
struct RefusingHooks(Pfn);

impl Hooks for RefusingHooks {
    fn going_online(&mut self, range: PfnRange, _: Zone) -> Result<(), Veto> {
        if range.contains(self.0) { Err(Veto("not this one")) } else { Ok(()) }
    }
}

#[test]
fn device_memory_whose_onlining_is_vetoed_stays_device_memory() {
    with_instance(|_, hotplug| {
        let before = snapshot(hotplug);
        let hooks = &mut RefusingHooks(pfn(device().end().number() - 1));
        for kind in [OnlineType::Online, OnlineType::Movable, OnlineType::Kernel] {
            let refused = hotplug.device_to_ram_raw(device(), kind, hooks);
            let veto =
                RangeError { range: device(), kind: RangeErrorKind::Vetoed(Veto("not this one")) };
            assert_eq!(refused, Err(AddError::Range(veto)));
            assert_eq!(snapshot(hotplug), before);
        }
        hotplug.device_to_ram_raw(device(), OnlineType::Offline, hooks).unwrap();
        assert_eq!(state(hotplug, device()), State::Offline);
    });
}

#[test]
fn poison_is_remembered_until_device_memory_is_detached() {
    with_instance(|frames, hotplug| {
        let bad = device().start();
        hotplug.device_to_ram_raw(device(), OnlineType::Offline, &mut NoHooks).unwrap();
        assert_eq!(hotplug.poison(bad), Ok(Poisoned::Quarantined));
        hotplug.ram_to_device(device()).unwrap();
        assert!(hotplug.frames().poisoned().eq([(bad, Poisoned::Quarantined)]));
        hotplug.device_to_ram_raw(device(), OnlineType::Movable, &mut NoHooks).unwrap();
        let refused = frames.alloc_range(AllocRequest::frames(1).at(bad).movable());
        assert!(matches!(refused, Err(AllocError::NotFree(_))), "{refused:?}");
        take_offline(hotplug, device());
        hotplug.ram_to_device(device()).unwrap();
        hotplug.detach_raw(device()).unwrap();
        assert_eq!(hotplug.frames().poisoned().count(), 0);
        hotplug.add(AddRequest { device: true, ..device().into() }).unwrap();
        hotplug.device_to_ram_raw(device(), OnlineType::Movable, &mut NoHooks).unwrap();
    });
}
