//! Tests that a zone is contiguous across holes beside boot memory if these have descriptors, and
//! across no other holes.

use fastrand::Rng;
use hotmem::*;
use hotmem_testkit::Validated as _;
use hotmem_testkit::{Memory, PAGEBLOCK, RawHotplugCalls as _, SECTION, pfn, range};
use std::collections::BTreeSet;

/// The number of pageblocks in a section.
const BLOCKS_PER_SECTION: u64 = SECTION / PAGEBLOCK;

fn bytes(range: PfnRange) -> BootRange {
    BootRange { start: range.start().phys_addr(), len: range.bytes() }
}

fn boot<'f>(frames: &'f Frames<OneCpu>, memory: &Memory, ram: &[PfnRange]) -> Hotplug<'f, OneCpu> {
    boot_with(frames, memory, ram, &[], Pfn::ZERO)
}

fn boot_with<'f>(
    frames: &'f Frames<OneCpu>,
    memory: &Memory,
    ram: &[PfnRange],
    nodes: &[(BootRange, NodeId)],
    low_end: Pfn,
) -> Hotplug<'f, OneCpu> {
    let ram: Vec<_> = ram.iter().copied().map(bytes).collect();
    let map = BootMap { nodes, low_end, ..BootMap::from(ram.as_slice()) };
    let mut hotplug = hotmem_testkit::start(frames, memory.direct_map(), map).unwrap();
    hotplug.settings.holes_described = true;
    hotplug
}

fn plug(hotplug: &mut Hotplug<'_, OneCpu>, range: PfnRange, kind: OnlineType) {
    hotplug.add(range).unwrap();
    hotplug.online(range, kind, &mut NoHooks).unwrap();
}

fn take_offline(hotplug: &mut Hotplug<'_, OneCpu>, range: PfnRange) {
    let mut offline = hotplug.offline(range).unwrap();
    let done = offline.poll(hotplug, &mut NoHooks, Budget::UNLIMITED);
    assert_eq!(done, Progress::Ready(range));
}

fn kernel_zone(hotplug: &Hotplug<'_, OneCpu>) -> ZoneInfo {
    hotplug.zone(NodeId::ZERO, Zone::Kernel)
}

/// Returns the RAM of two sections except a hole of one pageblock in the second, and the hole.
fn ram_with_a_hole() -> ([PfnRange; 2], PfnRange) {
    let hole = range(SECTION + PAGEBLOCK, PAGEBLOCK);
    ([range(0, SECTION + PAGEBLOCK), range(SECTION + 2 * PAGEBLOCK, SECTION - 2 * PAGEBLOCK)], hole)
}

#[test]
fn a_pc_with_virtio_mem_above_4_gib_is_contiguous_after_each_block() {
    // The end of boot memory and the start of hotplugged memory: 2 GiB and 4 GiB in the real
    // geometry.
    let (boot_end, plug_start) = (16 * SECTION, 32 * SECTION);
    let end = plug_start + 8 * SECTION;
    let (frames, memory) = (Frames::new(OneCpu), Memory::new(end));
    // RAM without the VGA hole (640 KiB to 1 MiB) and without the ACPI tables at the top, in parts
    // of a pageblock of 2 MiB.
    let ram = [
        range(0, PAGEBLOCK * 5 / 16),
        range(PAGEBLOCK / 2, boot_end - PAGEBLOCK / 2 - PAGEBLOCK / 16),
    ]
    .map(bytes);
    let map = BootMap { low_end: pfn(plug_start), ..BootMap::from(&ram) };
    let mut hotplug = hotmem_testkit::start(&frames, memory.direct_map(), map).unwrap();
    hotplug.settings.auto_online = OnlineType::Online;
    hotplug.announce(range(plug_start, end - plug_start)).unwrap();
    let blocks = || range(plug_start, end - plug_start).chunks(SECTION);
    let check = |hotplug: &Hotplug<'_, OneCpu>, end: Pfn| {
        let zone = kernel_zone(hotplug);
        assert_eq!(zone.spanned, PfnRange::new(pfn(plug_start), end).unwrap());
        assert!(zone.contiguous);
        assert!(hotplug.zone(NodeId::ZERO, ZonePart::Low).contiguous);
    };
    for block in blocks() {
        hotplug.add(block).unwrap();
        hotplug.online(block, None, &mut NoHooks).unwrap();
        check(&hotplug, block.end());
    }
    for block in blocks().rev() {
        check(&hotplug, block.end());
        take_offline(&mut hotplug, block);
        hotplug.remove(block).unwrap();
    }
    assert_eq!(kernel_zone(&hotplug).online, 0);
}

#[test]
fn a_hole_beside_boot_memory_is_covered_if_the_kernel_says_that_holes_are_described() {
    let (frames, memory) = (Frames::new(OneCpu), Memory::new(2 * SECTION));
    let (ram, _) = ram_with_a_hole();
    let mut hotplug = boot(&frames, &memory, &ram);
    let zone = kernel_zone(&hotplug);
    assert_eq!((zone.spanned, zone.online), (range(0, 2 * SECTION), 2 * SECTION - PAGEBLOCK));
    assert_eq!((zone.described_holes, zone.contiguous), (PAGEBLOCK, true));
    hotplug.settings.holes_described = false;
    let zone = kernel_zone(&hotplug);
    assert_eq!((zone.described_holes, zone.contiguous), (0, false));
}

#[test]
fn a_scan_of_a_contiguous_zone_with_a_hole_is_one_run() {
    let (frames, memory) = (Frames::new(OneCpu), Memory::new(2 * SECTION));
    let (ram, hole) = ram_with_a_hole();
    let hotplug = boot(&frames, &memory, &ram);
    let mut runs = vec![];
    hotplug.online_runs(NodeId::ZERO, Zone::Kernel, |run| runs.push(run));
    assert_eq!(runs, [range(0, 2 * SECTION)]);
    let mut scanned = vec![];
    hotplug.occupancy(runs[0], |block, _| scanned.push(block));
    assert!(
        scanned.iter().copied().eq(range(0, 2 * SECTION).chunks(PAGEBLOCK).filter(|b| *b != hole))
    );
}

#[test]
fn a_hole_that_was_announced_and_withdrawn_is_a_hole_again() {
    let (frames, memory) = (Frames::new(OneCpu), Memory::new(2 * SECTION));
    let (ram, hole) = ram_with_a_hole();
    let mut hotplug = boot(&frames, &memory, &ram);
    let before = kernel_zone(&hotplug);
    assert!(before.contiguous);
    let region = hotplug.announce(hole).unwrap();
    assert!(!kernel_zone(&hotplug).contiguous);
    hotplug.withdraw(region).unwrap();
    assert_eq!(kernel_zone(&hotplug), before);
}

#[test]
fn a_section_without_ram_is_no_hole() {
    let (frames, memory) = (Frames::new(OneCpu), Memory::new(3 * SECTION));
    let hotplug = boot(&frames, &memory, &[range(0, SECTION), range(2 * SECTION, SECTION)]);
    let zone = kernel_zone(&hotplug);
    assert_eq!((zone.described_holes, zone.contiguous), (0, false));
}

#[test]
fn holes_beyond_the_ends_of_a_zone_are_not_counted() {
    let (frames, memory) = (Frames::new(OneCpu), Memory::new(4 * SECTION));
    // There are holes below the first RAM, above the last RAM, and in the middle.
    let ram = [range(PAGEBLOCK, 2 * SECTION), range(SECTION * 2 + 2 * PAGEBLOCK, SECTION)];
    let hotplug = boot(&frames, &memory, &ram);
    let zone = kernel_zone(&hotplug);
    assert_eq!(zone.spanned, range(PAGEBLOCK, 3 * SECTION + PAGEBLOCK));
    assert_eq!((zone.described_holes, zone.contiguous), (PAGEBLOCK, true));
}

#[test]
fn a_hole_between_boot_memory_and_hotplugged_memory_is_covered() {
    let (frames, memory) = (Frames::new(OneCpu), Memory::new(3 * SECTION));
    // Boot memory does not end at a section.
    let mut hotplug = boot(&frames, &memory, &[range(0, SECTION + PAGEBLOCK)]);
    hotplug.announce(range(2 * SECTION, SECTION)).unwrap();
    plug(&mut hotplug, range(2 * SECTION, SECTION), OnlineType::Kernel);
    let zone = kernel_zone(&hotplug);
    assert_eq!(
        (zone.described_holes, zone.contiguous),
        ((BLOCKS_PER_SECTION - 1) * PAGEBLOCK, true)
    );
}

#[test]
fn a_hole_between_hotplugged_memory_in_a_section_with_boot_memory_is_covered() {
    let (frames, memory) = (Frames::new(OneCpu), Memory::new(2 * SECTION));
    let mut hotplug = boot(&frames, &memory, &[range(0, SECTION + PAGEBLOCK)]);
    // The second section has boot memory, hotplugged memory, a hole, and hotplugged memory again.
    let parts = [
        range(SECTION + PAGEBLOCK, PAGEBLOCK),
        range(SECTION + 3 * PAGEBLOCK, SECTION - 3 * PAGEBLOCK),
    ];
    for part in parts {
        hotplug.announce(part).unwrap();
        plug(&mut hotplug, part, OnlineType::Movable);
    }
    let movable_holes = |hotplug: &Hotplug<'_, OneCpu>| {
        let zone = hotplug.zone(NodeId::ZERO, Zone::Movable);
        (zone.described_holes, zone.contiguous)
    };
    assert_eq!(movable_holes(&hotplug), (PAGEBLOCK, true));
    take_offline(&mut hotplug, parts[0]);
    assert_eq!(movable_holes(&hotplug), (0, true));
    hotplug.online(parts[0], OnlineType::Movable, &mut NoHooks).unwrap();
    assert_eq!(movable_holes(&hotplug), (PAGEBLOCK, true));
    hotplug.announce(range(SECTION + 2 * PAGEBLOCK, PAGEBLOCK)).unwrap();
    assert_eq!(movable_holes(&hotplug), (0, false));
}

#[test]
fn absent_hotplugged_memory_is_no_hole() {
    let (frames, memory) = (Frames::new(OneCpu), Memory::new(3 * SECTION));
    let mut hotplug = boot(&frames, &memory, &[range(0, SECTION + PAGEBLOCK)]);
    // The absent memory is in a section with boot memory.
    let region = range(SECTION + PAGEBLOCK, 2 * SECTION - PAGEBLOCK);
    hotplug.announce(region).unwrap();
    plug(&mut hotplug, range(2 * SECTION, SECTION), OnlineType::Kernel);
    let zone = kernel_zone(&hotplug);
    assert_eq!((zone.described_holes, zone.contiguous), (0, false));
    let remaining = range(SECTION + PAGEBLOCK, SECTION - PAGEBLOCK);
    plug(&mut hotplug, remaining, OnlineType::Kernel);
    assert!(kernel_zone(&hotplug).contiguous);
    take_offline(&mut hotplug, remaining);
    hotplug.remove(remaining).unwrap();
    assert!(!kernel_zone(&hotplug).contiguous);
}

#[test]
fn offline_memory_is_no_hole() {
    let (frames, memory) = (Frames::new(OneCpu), Memory::new(2 * SECTION));
    let (ram, hole) = ram_with_a_hole();
    let mut hotplug = boot(&frames, &memory, &ram);
    // Take boot memory offline first, and then memory that was added in place of a hole.
    let block = range(PAGEBLOCK, PAGEBLOCK);
    take_offline(&mut hotplug, block);
    assert!(!kernel_zone(&hotplug).contiguous);
    hotplug.online(block, OnlineType::Kernel, &mut NoHooks).unwrap();
    assert!(kernel_zone(&hotplug).contiguous);
    hotplug.announce(hole).unwrap();
    hotplug.add(hole).unwrap();
    let zone = kernel_zone(&hotplug);
    assert_eq!((zone.described_holes, zone.contiguous), (0, false));
    hotplug.online(hole, OnlineType::Kernel, &mut NoHooks).unwrap();
    assert!(kernel_zone(&hotplug).contiguous);
    take_offline(&mut hotplug, hole);
    hotplug.remove(hole).unwrap();
    assert!(!kernel_zone(&hotplug).contiguous);
}

#[test]
fn device_memory_is_no_hole() {
    let (frames, memory) = (Frames::new(OneCpu), Memory::new(2 * SECTION));
    let (ram, hole) = ram_with_a_hole();
    let mut hotplug = boot(&frames, &memory, &ram);
    hotplug.announce(hole).unwrap();
    hotplug.add(AddRequest { device: true, ..hole.into() }).unwrap();
    assert!(!kernel_zone(&hotplug).contiguous);
    hotplug.detach_raw(hole).unwrap();
    assert!(!kernel_zone(&hotplug).contiguous);
}

#[test]
fn memory_of_another_zone_is_no_hole() {
    let (frames, memory) = (Frames::new(OneCpu), Memory::new(2 * SECTION));
    let (ram, _) = ram_with_a_hole();
    let mut hotplug = boot(&frames, &memory, &ram);
    let block = range(SECTION + 2 * PAGEBLOCK, PAGEBLOCK);
    take_offline(&mut hotplug, block);
    hotplug.online(block, OnlineType::Movable, &mut NoHooks).unwrap();
    let zone = kernel_zone(&hotplug);
    assert_eq!((zone.described_holes, zone.contiguous), (PAGEBLOCK, false));
    let movable = hotplug.zone(NodeId::ZERO, Zone::Movable);
    assert_eq!((movable.described_holes, movable.contiguous), (0, true));
}

#[test]
fn memory_of_another_node_is_no_hole() {
    let (frames, memory) = (Frames::new(OneCpu), Memory::new(3 * SECTION));
    let nodes = [(bytes(range(SECTION, SECTION)), NodeId(1))];
    let ram = [range(0, 2 * SECTION - PAGEBLOCK), range(2 * SECTION, SECTION)];
    let hotplug = boot_with(&frames, &memory, &ram, &nodes, Pfn::ZERO);
    let zone = kernel_zone(&hotplug);
    assert_eq!((zone.described_holes, zone.contiguous), (0, false));
    let other = hotplug.zone(NodeId(1), Zone::Kernel);
    assert_eq!((other.described_holes, other.contiguous), (0, true));
}

/// Checks that a section between two online hotplugged sections makes the zone not contiguous.
/// `prepare_middle` brings that section to the state that is tested.
fn check_gap(prepare_middle: impl FnOnce(&mut Hotplug<'_, OneCpu>, PfnRange)) {
    let (frames, memory) = (Frames::new(OneCpu), Memory::new(5 * SECTION));
    let (ram, _) = ram_with_a_hole();
    let mut hotplug = boot(&frames, &memory, &ram);
    let [below, middle, above] = [2, 3, 4].map(|n| range(n * SECTION, SECTION));
    for outer in [below, above] {
        hotplug.announce(outer).unwrap();
        plug(&mut hotplug, outer, OnlineType::Kernel);
    }
    prepare_middle(&mut hotplug, middle);
    let zone = kernel_zone(&hotplug);
    assert_eq!((zone.spanned, zone.online), (range(0, 5 * SECTION), 4 * SECTION - PAGEBLOCK));
    assert_eq!((zone.described_holes, zone.contiguous), (PAGEBLOCK, false));
}

#[test]
fn memory_that_nobody_announced_is_a_gap() {
    check_gap(|_, _| {});
}

#[test]
fn absent_memory_is_a_gap() {
    check_gap(|hotplug, middle| {
        hotplug.announce(middle).unwrap();
    });
}

#[test]
fn offline_memory_is_a_gap() {
    check_gap(|hotplug, middle| {
        hotplug.announce(middle).unwrap();
        hotplug.add(middle).unwrap();
    });
}

#[test]
fn memory_that_went_offline_is_a_gap() {
    check_gap(|hotplug, middle| {
        hotplug.announce(middle).unwrap();
        plug(hotplug, middle, OnlineType::Kernel);
        assert!(kernel_zone(hotplug).contiguous);
        take_offline(hotplug, middle);
    });
}

#[test]
fn device_memory_is_a_gap() {
    check_gap(|hotplug, middle| {
        hotplug.announce(middle).unwrap();
        hotplug.add(AddRequest { device: true, ..middle.into() }).unwrap();
    });
}

#[test]
fn memory_of_another_zone_is_a_gap() {
    check_gap(|hotplug, middle| {
        hotplug.announce(middle).unwrap();
        plug(hotplug, middle, OnlineType::Movable);
    });
}

#[test]
fn memory_of_another_node_is_a_gap() {
    check_gap(|hotplug, middle| {
        hotplug.announce(Announce { node: NodeId(1), ..middle.into() }).unwrap();
        plug(hotplug, middle, OnlineType::Kernel);
    });
}

/// The number of sections of an instance. The first half of them has boot memory.
const SECTIONS: u64 = 8;

/// A naive model of holes, with an entry for each pageblock.
struct NaiveHoles {
    /// The pageblocks that were holes after the boot.
    boot_holes: BTreeSet<u64>,
    holes: BTreeSet<u64>,
    low_end: Pfn,
}

impl NaiveHoles {
    fn new(ram: &[PfnRange], low_end: Pfn) -> NaiveHoles {
        let is_ram = |range: PfnRange| ram.iter().any(|ram| ram.overlaps(range));
        let sections =
            range(0, SECTIONS * SECTION).chunks(SECTION).filter(|section| is_ram(*section));
        let blocks = sections.flat_map(|section| section.chunks(PAGEBLOCK));
        let holes = blocks.filter(|block| !is_ram(*block)).map(|block| block.start().number());
        let holes: BTreeSet<u64> = holes.collect();
        NaiveHoles { boot_holes: holes.clone(), holes, low_end }
    }

    /// Records that the holes in `range` are announced or added, so that they are no holes.
    fn fill(&mut self, range: PfnRange) {
        self.holes.retain(|&hole| !range.contains(pfn(hole)));
    }

    /// Records that `range` is withdrawn, so that its pageblocks are what they were after the boot.
    fn withdraw(&mut self, range: PfnRange) {
        let holes = self.boot_holes.iter().filter(|&&hole| range.contains(pfn(hole)));
        self.holes.extend(holes);
    }

    /// Returns the span of a zone, the number of frames of described holes in the span, and whether
    /// the zone is contiguous.
    fn zone(&self, hotplug: &Hotplug<'_, OneCpu>, zone: Zone, low: bool) -> (PfnRange, u64, bool) {
        let blocks = || range(0, SECTIONS * SECTION).chunks(PAGEBLOCK);
        let online: BTreeSet<u64> = blocks()
            .filter(|b| hotplug.state_at(b.start(), b.end()) == (*b, State::from(zone)))
            .filter(|b| zone == Zone::Movable || (b.start() < self.low_end) == low)
            .map(|b| b.start().number())
            .collect();
        let Some((first, last_block)) = online.first().zip(online.last()) else {
            return (PfnRange::EMPTY, 0, false);
        };
        let span = PfnRange::new(pfn(*first), pfn(last_block + PAGEBLOCK)).unwrap();
        let shares_section = |hole: u64| online.iter().any(|b| b / SECTION == hole / SECTION);
        let holes = span.chunks(PAGEBLOCK).map(|b| b.start().number());
        let holes =
            holes.filter(|hole| self.holes.contains(hole) && shares_section(*hole)).count() as u64;
        let is_covered = |b: PfnRange| {
            let block = b.start().number();
            online.contains(&block) || self.holes.contains(&block)
        };
        (span, holes * PAGEBLOCK, span.chunks(PAGEBLOCK).all(is_covered))
    }
}

#[test]
fn holes_agree_with_a_walk_over_all_pageblocks() {
    let mut rng = Rng::with_seed(11);
    let (mut outcomes, mut withdrawn) = ([0; 2], 0);
    for instance_index in 0..40 {
        let (frames, memory) = (Frames::new(OneCpu), Memory::new(SECTIONS * SECTION));
        let mut ram = vec![];
        let mut start = rng.u64(..3) * PAGEBLOCK;
        while start < SECTIONS / 2 * SECTION {
            let len = (1 + rng.u64(..2 * BLOCKS_PER_SECTION)) * PAGEBLOCK;
            ram.push(range(start, len.min(SECTIONS / 2 * SECTION - start)));
            let hole = if rng.u8(..4) == 0 { rng.u64(1..=2 * BLOCKS_PER_SECTION) } else { 1 };
            start += len + hole * PAGEBLOCK;
        }
        let low_end = pfn(rng.u64(..SECTIONS) * SECTION);
        let mut hotplug = boot_with(&frames, &memory, &ram, &[], low_end);
        let mut naive = NaiveHoles::new(&ram, low_end);
        for operation in 0..60 {
            let first = rng.u64(..SECTIONS * BLOCKS_PER_SECTION);
            let part = range(first * PAGEBLOCK, (1 + rng.u64(..BLOCKS_PER_SECTION)) * PAGEBLOCK);
            let part = part.intersection(range(0, SECTIONS * SECTION));
            // Restrict the part to one region and one state.
            let regions = hotplug.regions().map(|(_, region)| region);
            let region = regions.into_iter().find(|region| region.contains(part.start()));
            let announced = hotplug.regions().find(|(_, region)| region.contains(part.start()));
            if let Some((id, region)) = announced
                && rng.u8(..4) == 0
                && hotplug.withdraw(id).is_ok()
            {
                naive.withdraw(region);
                withdrawn += 1;
                continue;
            }
            let part = region.map_or(part, |region| part.intersection(region));
            let (run, state) = hotplug.state_at(part.start(), part.end());
            match state {
                State::Unknown => {
                    hotplug.announce(run).unwrap();
                    naive.fill(run);
                }
                State::Absent if rng.bool() => {}
                State::Absent if rng.u8(..4) == 0 => {
                    hotplug.add(AddRequest { device: true, ..run.into() }).unwrap();
                    naive.fill(run);
                }
                State::Absent => {
                    hotplug.add(run).unwrap();
                    naive.fill(run);
                }
                State::Device => hotplug.detach_raw(run).unwrap(),
                State::Removing => unreachable!("no removal is prepared"),
                State::Offline if rng.u8(..4) == 0 => {
                    let is_boot = ram.iter().any(|ram| ram.overlaps(run));
                    let refused = RangeError { range: run, kind: RangeErrorKind::BootMemory };
                    let expected = if is_boot { Err(refused) } else { Ok(()) };
                    assert_eq!(hotplug.remove(run), expected);
                }
                State::Offline => {
                    let kinds = [OnlineType::Kernel, OnlineType::Kernel, OnlineType::Movable];
                    hotplug.online(run, kinds[rng.usize(..3)], &mut NoHooks).unwrap();
                }
                State::Online | State::OnlineMovable => {
                    let mut offline = hotplug.offline(run).unwrap();
                    let polled = offline.poll(&mut hotplug, &mut NoHooks, Budget::UNLIMITED);
                    if polled != Progress::Ready(run) {
                        // Memory with metadata stays online.
                        offline.cancel(&mut hotplug, &mut NoHooks);
                    }
                }
            }
            let [kernel, movable] = Zone::ALL.map(|zone| hotplug.zone(NodeId::ZERO, zone));
            let low = hotplug.zone(NodeId::ZERO, ZonePart::Low);
            let zones = [(low, Zone::Kernel, true), (kernel, Zone::Kernel, false)];
            for (info, zone, is_low) in zones.into_iter().chain([(movable, Zone::Movable, false)]) {
                let (span, holes, contiguous) = naive.zone(&hotplug, zone, is_low);
                let actual = (info.spanned, info.described_holes, info.contiguous);
                let label = format!("{instance_index}.{operation}: {zone:?}, low: {is_low}");
                assert_eq!(actual, (span, holes, contiguous), "{label}");
                outcomes[usize::from(contiguous && holes != 0)] += 1;
            }
        }
        frames.validated().unwrap();
    }
    assert!(withdrawn > 100, "{withdrawn} regions were withdrawn");
    assert!(outcomes[1] > 100, "described holes must make zones contiguous often: {outcomes:?}");
}
