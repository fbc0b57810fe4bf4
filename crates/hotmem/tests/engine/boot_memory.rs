//! Tests what boot memory is: whole pageblocks with RAM that the boot map names. It is never removed,
//! its frames that are no RAM are never counted or touched, and memory that is plugged between its
//! pageblocks is not boot memory.

use hotmem::geometry::FRAME_SIZE;
use hotmem::*;
use hotmem_testkit::RawRanges as _;
use hotmem_testkit::Validated as _;
use hotmem_testkit::{Memory, PAGEBLOCK, SECTION, numbers, pfn, range};

fn bytes(range: PfnRange) -> BootRange {
    BootRange { start: range.start().phys_addr(), len: range.bytes() }
}

fn start<'f>(frames: &'f Frames<OneCpu>, memory: &Memory, ram: &[PfnRange]) -> Hotplug<'f, OneCpu> {
    let ram: Vec<_> = ram.iter().copied().map(bytes).collect();
    hotmem_testkit::start(frames, memory.direct_map(), ram.as_slice()).unwrap()
}

fn take_offline(hotplug: &mut Hotplug<'_, OneCpu>, range: PfnRange) {
    let mut offline = hotplug.offline(range).unwrap();
    let progress = offline.poll(hotplug, &mut NoHooks, Budget::UNLIMITED);
    assert_eq!(progress, Progress::Ready(range));
}

#[test]
fn boot_memory_goes_offline_and_is_never_removed() {
    let (frames, memory) = (Frames::new(OneCpu), Memory::new(SECTION));
    let mut hotplug = start(&frames, &memory, &[range(0, SECTION)]);
    let before = frames.validated().unwrap();
    let block = range(PAGEBLOCK, PAGEBLOCK);
    take_offline(&mut hotplug, block);
    let refused = RangeError { range: block, kind: RangeErrorKind::BootMemory };
    assert_eq!(hotplug.prepare_remove(block).unwrap_err(), refused);
    assert_eq!(hotplug.remove(block), Err(refused));
    assert_eq!(hotplug.ram_to_device(block), Err(refused));
    assert_eq!(hotplug.state_at(block.start(), block.end()), (block, State::Offline));
    hotplug.online(block, OnlineType::Kernel, &mut NoHooks).unwrap();
    // A shrink leaves it alone.
    let mut shrink = Shrink::new(range(0, SECTION));
    let polled = shrink.poll(&mut hotplug, &mut NoHooks, Budget::UNLIMITED);
    let blocker = hotmem_testkit::blocker_of(polled).unwrap();
    assert_eq!(blocker, Blocker { range: range(0, SECTION), kind: BlockerKind::BootMemory });
    shrink.cancel(&mut hotplug, &mut NoHooks);
    assert_eq!(frames.validated().unwrap(), before);
    let mut listed = hotplug.memory_blocks(SECTION);
    assert!(listed.all(|block| block.blocker.is_some()));
}

#[test]
fn a_shrink_takes_the_plugged_memory_between_boot_memory() {
    let (frames, memory) = (Frames::new(OneCpu), Memory::new(4 * SECTION));
    let mut hotplug = start(&frames, &memory, &[range(0, SECTION), range(3 * SECTION, SECTION)]);
    let plugged = range(SECTION, 2 * SECTION);
    hotmem_testkit::plug(&mut hotplug, plugged);
    let mut shrink = Shrink::new(range(0, 4 * SECTION));
    let polled = shrink.poll(&mut hotplug, &mut NoHooks, Budget::UNLIMITED);
    let Progress::Ready(removal) = polled else { panic!("{polled:?}") };
    assert_eq!(removal.range(), plugged);
    let all = hotplug.state_at(plugged.start(), plugged.end());
    assert_eq!(all, (plugged, State::Removing));
    hotplug.abandon_remove(removal, &mut NoHooks);
    assert_eq!(hotplug.state_at(plugged.start(), plugged.end()).1, State::OnlineMovable);
    let polled = shrink.poll(&mut hotplug, &mut NoHooks, Budget::UNLIMITED);
    let kind = hotmem_testkit::blocker_of(polled).map(|blocker| blocker.kind);
    assert_eq!(kind, Some(BlockerKind::BootMemory));
}

/// Boot memory need not begin where a unit does. Then the memory below it, in the same unit, is no
/// unit that a device can take.
#[test]
fn a_shrink_takes_whole_units_below_boot_memory() {
    let (frames, memory) = (Frames::new(OneCpu), Memory::new(4 * SECTION));
    let plugged = range(SECTION, SECTION + 3 * PAGEBLOCK);
    let boot_above = range(plugged.end().number(), 5 * PAGEBLOCK);
    let mut hotplug = start(&frames, &memory, &[range(0, SECTION), boot_above]);
    hotmem_testkit::plug(&mut hotplug, plugged);
    let all = range(0, 4 * SECTION);
    let mut shrink = Shrink::new(ShrinkOptions { unit: 4 * PAGEBLOCK, ..all.into() });
    let polled = shrink.poll(&mut hotplug, &mut NoHooks, Budget::UNLIMITED);
    let Progress::Ready(removal) = polled else { panic!("{polled:?}") };
    assert_eq!(removal.range(), range(SECTION, SECTION));
    hotplug.commit_remove(removal);
    let polled = shrink.poll(&mut hotplug, &mut NoHooks, Budget::UNLIMITED);
    let blocker = hotmem_testkit::blocker_of(polled).unwrap();
    assert_eq!(blocker.kind, BlockerKind::BootMemory);
    frames.validated().unwrap();
}

#[cfg(not(hotmem_geometry = "small"))]
#[test]
fn memory_plugged_between_boot_memory_is_not_boot_memory() {
    let (frames, memory) = (Frames::new(OneCpu), Memory::new(3 * SECTION));
    let ram = [range(0, 8 * PAGEBLOCK), range(16 * PAGEBLOCK, 4 * PAGEBLOCK)];
    let mut hotplug = start(&frames, &memory, &ram);
    assert!(hotplug.regions().map(|(_, region)| region).eq(ram));
    let plugged = range(9 * PAGEBLOCK, 4 * PAGEBLOCK);
    hotplug.announce(plugged).unwrap();
    hotplug.add(plugged).unwrap();
    hotplug.online(plugged, OnlineType::Kernel, &mut NoHooks).unwrap();
    // Use all boot memory.
    let mut taken = vec![];
    while let Ok(frame) = frames.alloc_range(AllocRequest::frames(1).in_boot_memory()) {
        assert!(!plugged.overlaps(frame), "{frame} is boot memory");
        taken.push(frame);
    }
    // Bitmaps of other memory come to lie in that memory itself.
    let other = range(SECTION, 2 * SECTION);
    hotmem_testkit::plug(&mut hotplug, other);
    let at = AllocRequest::frames(1).movable().at(other.start());
    let divided = frames.alloc_range(at).unwrap();
    frames.validated().unwrap();
    take_offline(&mut hotplug, plugged);
    hotplug.remove(plugged).unwrap();
    taken.into_iter().chain([divided]).for_each(|frame| frames.free_range(frame).unwrap());
    frames.validated().unwrap();
}

/// A gap between boot memory of one node is announced, added and removed like any other range,
/// however many sections it has, and wherever in a chunk of words it begins.
#[test]
fn memory_in_a_gap_between_boot_memory_is_announced_and_removed() {
    for first in [1, 2] {
        for gap_sections in [1, 8, 62, 63, 64, 255, 256, 257] {
            // The engine writes to the lowest memory only.
            let memory = Memory::new(first * SECTION);
            let frames = Frames::new(OneCpu);
            let gap = range(first * SECTION, gap_sections * SECTION);
            let above = range(gap.end().number(), SECTION);
            let mut hotplug = start(&frames, &memory, &[range(0, first * SECTION), above]);
            let before = frames.validated().unwrap();
            assert_eq!(hotplug.state_at(gap.start(), gap.end()), (gap, State::Unknown));
            // Memory that is not announced is refused, in a gap as elsewhere.
            let unknown = RangeError { range: gap, kind: RangeErrorKind::NotAnnounced };
            assert_eq!(hotplug.add(gap), Err(AddError::Range(unknown)));
            let region = hotplug.announce(gap).unwrap();
            let part = range(gap.start().number(), SECTION);
            hotplug.add(part).unwrap();
            hotplug.online(part, OnlineType::Movable, &mut NoHooks).unwrap();
            take_offline(&mut hotplug, part);
            hotplug.remove(part).unwrap();
            hotplug.withdraw(region).unwrap();
            let after = frames.validated().unwrap();
            // The words of the gap stay.
            let words = before.free - after.free;
            assert!(words <= 15, "{words}");
            assert_eq!(Counts { free: before.free, used: before.used, ..after }, before);
        }
    }
}

/// RAM as on a PC: none from 640 KiB to 1 MiB, and the last pageblock ends early. Returns the parts,
/// and all frames that are RAM.
fn pc() -> ([PfnRange; 2], Vec<u64>) {
    let ram = [
        range(0, PAGEBLOCK * 5 / 16),
        range(PAGEBLOCK / 2, SECTION - PAGEBLOCK / 2 - PAGEBLOCK / 16),
    ];
    (ram, ram.into_iter().flat_map(numbers).collect())
}

#[test]
fn frames_that_are_no_ram_are_not_counted() {
    let (frames, memory) = (Frames::new(OneCpu), Memory::new(SECTION));
    let (ram, all) = pc();
    let mut hotplug = start(&frames, &memory, &ram);
    let counts = frames.validated().unwrap();
    let ram = all.len() as u64;
    assert_eq!((counts.announced, counts.present, counts.online), (SECTION, ram, ram));
    assert_eq!(counts.used + counts.free, ram);
    let words = frames.metadata().map(|metadata| metadata.frames.frames()).sum::<u64>();
    assert_eq!(counts.used, words);
    let mut scanned = 0;
    hotplug.occupancy(range(0, SECTION), |_, used| scanned += used);
    assert_eq!(scanned, counts.used);
    let zone = hotplug.zone(NodeId::ZERO, Zone::Kernel);
    assert_eq!((zone.online, zone.present), (SECTION, ram));
    // An isolated pageblock has no more isolated frames than RAM.
    let token = frames.isolate(range(0, PAGEBLOCK)).unwrap();
    assert_eq!(frames.counts().isolated, PAGEBLOCK * 13 / 16);
    token.release();
    let no_ram = pfn(PAGEBLOCK * 5 / 16);
    let refused = RangeError { range: range(no_ram.number(), 1), kind: RangeErrorKind::NotPresent };
    assert_eq!(hotplug.poison(no_ram), Err(refused));
}

#[test]
fn a_pin_touches_only_ram_that_is_not_poisoned() {
    let (frames, memory) = (Frames::new(OneCpu), Memory::new(2 * SECTION));
    let (ram, mut all) = pc();
    let mut hotplug = start(&frames, &memory, &ram);
    hotmem_testkit::plug(&mut hotplug, range(SECTION, SECTION));
    all.extend(numbers(range(SECTION, SECTION)));
    let used = frames.alloc_range(AllocRequest::frames(2).movable()).unwrap();
    let bad = [pfn(SECTION + PAGEBLOCK + 7), pfn(2 * SECTION - 1), used.start()];
    for frame in bad {
        hotplug.poison(frame).unwrap();
    }
    all.retain(|&frame| !bad.contains(&pfn(frame)));
    let mut touched = vec![];
    let pinned = range(0, 2 * SECTION);
    hotplug
        .pin(pinned, |part| {
            assert_eq!(part.align_outward(PAGEBLOCK).frames(), PAGEBLOCK);
            touched.extend(numbers(part));
        })
        .unwrap();
    assert_eq!(touched, all);
    assert!(hotplug.unpin(pinned));
    const { assert!(FRAME_SIZE == 4096) };
}
