//! Tests that low memory is counted separately from other kernel memory.

use fastrand::Rng;
use hotmem::*;
use hotmem_testkit::Validated as _;
use hotmem_testkit::{Memory, PAGEBLOCK, SECTION, pfn, range};

const BOOT_FRAMES: u64 = 2 * SECTION;
/// The boundary of low memory, where hotplugged memory begins.
const LOW_END: u64 = 4 * SECTION;
const MEMORY_FRAMES: u64 = 12 * SECTION;

/// Boots an instance with boot memory from address 0, and this boundary of low memory.
fn boot<'f>(frames: &'f Frames<OneCpu>, memory: &Memory, low_end: Pfn) -> Hotplug<'f, OneCpu> {
    let ram = [BootRange { start: 0, len: range(0, BOOT_FRAMES).bytes() }];
    let map = BootMap { low_end, ..BootMap::from(&ram) };
    hotmem_testkit::start(frames, memory.direct_map(), map).unwrap()
}

fn plug(hotplug: &mut Hotplug<'_, OneCpu>, range: PfnRange, kind: OnlineType) {
    hotplug.add(range).unwrap();
    hotplug.online(range, kind, &mut NoHooks).unwrap();
}

fn unplug(hotplug: &mut Hotplug<'_, OneCpu>, range: PfnRange) {
    let mut offline = hotplug.offline(range).unwrap();
    let done = offline.poll(hotplug, &mut NoHooks, Budget::UNLIMITED);
    assert_eq!(done, Progress::Ready(range));
    hotplug.remove(range).unwrap();
}

#[test]
fn the_zone_that_grows_does_not_span_the_hole_below_the_boundary() {
    let (frames, memory) = (Frames::new(OneCpu), Memory::new(MEMORY_FRAMES));
    let mut hotplug = boot(&frames, &memory, pfn(LOW_END));
    hotplug.announce(range(LOW_END, MEMORY_FRAMES - LOW_END)).unwrap();
    let blocks = || range(LOW_END, MEMORY_FRAMES - LOW_END).chunks(SECTION / 2);
    for block in blocks() {
        plug(&mut hotplug, block, OnlineType::Online);
        let zone = hotplug.zone(NodeId::ZERO, Zone::Kernel);
        assert_eq!(zone.spanned, PfnRange::new(pfn(LOW_END), block.end()).unwrap());
        assert_eq!(zone.online, zone.spanned.frames());
        assert!(zone.contiguous);
        let low = hotplug.zone(NodeId::ZERO, ZonePart::Low);
        assert_eq!((low.spanned, low.online), (range(0, BOOT_FRAMES), BOOT_FRAMES));
        assert!(low.contiguous);
    }
    for block in blocks().rev() {
        assert!(hotplug.zone(NodeId::ZERO, Zone::Kernel).contiguous);
        unplug(&mut hotplug, block);
    }
    let zone = hotplug.zone(NodeId::ZERO, Zone::Kernel);
    assert_eq!((zone.spanned, zone.online, zone.contiguous), (PfnRange::EMPTY, 0, false));
    assert!(hotplug.nodes().eq([NodeId::ZERO]));
}

#[test]
fn without_a_boundary_all_kernel_memory_is_one_zone() {
    let (frames, memory) = (Frames::new(OneCpu), Memory::new(MEMORY_FRAMES));
    let mut hotplug = boot(&frames, &memory, Pfn::ZERO);
    hotplug.announce(range(LOW_END, MEMORY_FRAMES - LOW_END)).unwrap();
    plug(&mut hotplug, range(LOW_END, SECTION), OnlineType::Online);
    let zone = hotplug.zone(NodeId::ZERO, Zone::Kernel);
    assert_eq!((zone.spanned, zone.online), (range(0, LOW_END + SECTION), BOOT_FRAMES + SECTION));
    assert!(!zone.contiguous);
    assert_eq!(hotplug.zone(NodeId::ZERO, ZonePart::Low), ZoneInfo::default());
}

#[test]
fn the_boundary_is_rounded_down_to_a_section() {
    let (frames, memory) = (Frames::new(OneCpu), Memory::new(MEMORY_FRAMES));
    let hotplug = boot(&frames, &memory, pfn(2 * SECTION - 1));
    let low = hotplug.zone(NodeId::ZERO, ZonePart::Low);
    assert_eq!((low.spanned, low.online), (range(0, SECTION), SECTION));
    let zone = hotplug.zone(NodeId::ZERO, Zone::Kernel);
    assert_eq!((zone.spanned, zone.online), (range(SECTION, SECTION), SECTION));
}

#[test]
fn a_scan_of_kernel_memory_sees_both_sides() {
    let (frames, memory) = (Frames::new(OneCpu), Memory::new(MEMORY_FRAMES));
    let mut hotplug = boot(&frames, &memory, pfn(LOW_END));
    hotplug.announce(range(BOOT_FRAMES, MEMORY_FRAMES - BOOT_FRAMES)).unwrap();
    // A range across the boundary.
    plug(&mut hotplug, range(LOW_END - PAGEBLOCK, 2 * PAGEBLOCK), OnlineType::Kernel);
    plug(&mut hotplug, range(LOW_END + SECTION, SECTION), OnlineType::Kernel);
    let mut runs = Vec::new();
    hotplug.online_runs(NodeId::ZERO, Zone::Kernel, |run| runs.push(run));
    let above = [range(LOW_END, PAGEBLOCK), range(LOW_END + SECTION, SECTION)];
    assert_eq!(
        runs,
        [range(0, BOOT_FRAMES), range(LOW_END - PAGEBLOCK, PAGEBLOCK), above[0], above[1]]
    );
}

/// Computes the span and the number of online frames of a zone in `within` from the state of each
/// pageblock.
fn walk_zone(hotplug: &Hotplug<'_, OneCpu>, zone: Zone, within: PfnRange) -> (PfnRange, u64) {
    let target = State::from(zone);
    let blocks = range(0, MEMORY_FRAMES).intersection(within).chunks(PAGEBLOCK);
    let online = blocks.filter(|b| hotplug.state_at(b.start(), b.end()) == (*b, target));
    online.fold((PfnRange::EMPTY, 0), |(span, online), block| {
        let start = if online == 0 { block.start() } else { span.start() };
        (PfnRange::new(start, block.end()).unwrap(), online + PAGEBLOCK)
    })
}

#[test]
fn both_sides_agree_with_a_walk_through_random_changes() {
    let (frames, memory) = (Frames::new(OneCpu), Memory::new(MEMORY_FRAMES));
    let mut rng = Rng::with_seed(7);
    let mut outcomes = [0; 2];
    let boundary = pfn(6 * SECTION);
    let mut hotplug = boot(&frames, &memory, boundary);
    let hot = range(BOOT_FRAMES, MEMORY_FRAMES - BOOT_FRAMES);
    hotplug.announce(hot).unwrap();
    // Change half sections, so that a part of a section can be removed.
    let unit = SECTION / 2;
    for _ in 0..3000 {
        let part = range(BOOT_FRAMES + rng.u64(..hot.frames() / unit) * unit, unit);
        let (run, state) = hotplug.state_at(part.start(), part.end());
        match state {
            State::Absent => hotplug.add(run).unwrap(),
            State::Offline if rng.u8(..4) == 0 => hotplug.remove(run).unwrap(),
            State::Offline => {
                let is_movable = rng.u8(..4) == 0;
                let kind = if is_movable { OnlineType::Movable } else { OnlineType::Kernel };
                hotplug.online(run, kind, &mut NoHooks).unwrap();
            }
            _ if rng.u8(..4) != 0 => continue,
            _ => {
                let mut offline = hotplug.offline(run).unwrap();
                let done = offline.poll(&mut hotplug, &mut NoHooks, Budget::UNLIMITED);
                assert_eq!(done, Progress::Ready(run));
            }
        }
        let (below, above) = PfnRange::ALL.split_at(boundary);
        let [kernel, movable] = Zone::ALL.map(|zone| hotplug.zone(NodeId::ZERO, zone));
        let low = hotplug.zone(NodeId::ZERO, ZonePart::Low);
        let all = PfnRange::ALL;
        let zones = [(low, Zone::Kernel, below), (kernel, Zone::Kernel, above)];
        for (info, zone, within) in zones.into_iter().chain([(movable, Zone::Movable, all)]) {
            let (span, online) = walk_zone(&hotplug, zone, within);
            assert_eq!((info.spanned, info.online), (span, online));
            assert_eq!(info.present, online);
            assert_eq!(info.contiguous, online != 0 && span.frames() == online);
            outcomes[usize::from(info.contiguous)] += 1;
        }
    }
    frames.validated().unwrap();
    assert!(
        outcomes[0] > 100 && outcomes[1] > 100,
        "zones must be contiguous and not contiguous often: {outcomes:?}"
    );
}

std::thread_local! {
    static CPU: std::cell::Cell<usize> = const { std::cell::Cell::new(0) };
}

/// A platform whose caller chooses the CPU.
struct ChosenCpu;

impl Platform for ChosenCpu {
    fn cpu(&self) -> usize {
        CPU.get()
    }
}

/// A pair that finds no hint divides a pageblock, which becomes whole again.
#[test]
fn a_pair_in_low_memory_leaves_its_pageblock_divided() {
    let near = NodeChoice::Near(NodeId::ZERO);
    for size in [1, 2] {
        let any = AllocRequest::frames(size);
        for request in [any, any.node(near)] {
            let (frames, memory) = (Frames::new(OneCpu), Memory::new(BOOT_FRAMES));
            let _hotplug = boot(&frames, &memory, pfn(LOW_END));
            // The rest of the pageblocks that hold metadata.
            let taken = || {
                let Counts { free, free_whole, .. } = frames.counts();
                (free > free_whole).then(|| frames.alloc(AllocRequest::frames(1)).unwrap())
            };
            let singles: Vec<_> = core::iter::from_fn(taken).collect();
            let whole = frames.counts().free_whole;
            for _ in 0..100 {
                drop(frames.alloc(request).unwrap());
                assert_eq!(frames.counts().free_whole, whole - PAGEBLOCK, "{request:?}");
            }
            drop(singles);
            frames.validated().unwrap();
        }
    }
}

#[test]
fn every_cpu_leaves_low_memory_when_other_memory_is_free_again() {
    let near = NodeChoice::Near(NodeId::ZERO);
    let [frame, run, pageblock] = [1, 2, PAGEBLOCK].map(AllocRequest::frames);
    for request in [frame, run, pageblock, frame.node(near), run.node(near)] {
        let (frames, memory) = (Frames::new(ChosenCpu), Memory::new(2 * SECTION));
        let ram = [BootRange { start: 0, len: range(0, 2 * SECTION).bytes() }];
        let map = BootMap { low_end: pfn(SECTION), ..BootMap::from(&ram) };
        let _hotplug = hotmem_testkit::start(&frames, memory.direct_map(), map).unwrap();
        let low = range(0, SECTION);
        let mut high = Vec::new();
        for frames_of_request in [PAGEBLOCK, 1] {
            let above = AllocRequest::frames(frames_of_request).within(low.end()..);
            high.extend(core::iter::from_fn(|| frames.alloc(above).ok()));
        }
        CPU.set(1);
        let first = frames.alloc(request).unwrap();
        assert!(low.covers(first.range()));
        CPU.set(0);
        drop(high);
        CPU.set(1);
        let next = frames.alloc(request).unwrap();
        assert!(!low.overlaps(next.range()), "{request:?}: {}", next.range());
        CPU.set(0);
        drop((first, next));
        frames.validated().unwrap();
    }
}
