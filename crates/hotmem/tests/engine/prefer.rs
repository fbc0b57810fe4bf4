//! Tests that requests without a bound prefer kernel memory above the boundary, and leave low
//! memory to requests that need it.

use fastrand::Rng;
use hotmem::*;
use hotmem_testkit::{BLOCK, Cpus, Memory, SECTION, WORD, pfn, range};
use hotmem_testkit::{Raw as _, Validated as _};

/// The end of boot memory, and the start of memory that is plugged.
const LOW: u64 = 3 * SECTION;
const ALL: u64 = 8 * SECTION;

fn boot<'f, P: Platform>(
    frames: &'f Frames<P>,
    memory: &Memory,
    boot: PfnRange,
    low_end: u64,
) -> Hotplug<'f, P> {
    let ram = [BootRange { start: boot.start().phys_addr(), len: boot.bytes() }];
    let map = BootMap { low_end: pfn(low_end), ..BootMap::of_ram(&ram) };
    hotmem_testkit::start(frames, memory.direct_map(), &map).unwrap()
}

/// A machine with low memory, and memory above it that was added later.
fn plugged<'f, P: Platform>(frames: &'f Frames<P>, memory: &Memory) -> Hotplug<'f, P> {
    let mut hotplug = boot(frames, memory, range(0, LOW), LOW);
    // The CPUs' hints are in low memory.
    for request in [AllocRequest::frames(1), AllocRequest::frames(BLOCK)] {
        let got = frames.take_raw(request).unwrap();
        assert!(is_low(got));
        frames.give_raw(got).unwrap();
    }
    hotplug.announce(range(LOW, ALL - LOW)).unwrap();
    bring(&mut hotplug, range(LOW, ALL - LOW), OnlineType::Kernel);
    hotplug
}

fn bring<P: Platform>(hotplug: &mut Hotplug<'_, P>, range: PfnRange, kind: OnlineType) {
    hotplug.add(range).unwrap();
    hotplug.online(range, kind, &mut NoHooks).unwrap();
}

fn is_low(range: PfnRange) -> bool {
    range.start() < pfn(LOW)
}

/// Allocates `request` until it fails, and returns the ranges in order.
fn all_of<P: Platform>(frames: &Frames<P>, request: AllocRequest) -> Vec<PfnRange> {
    let got: Vec<_> = std::iter::from_fn(|| frames.take_raw(request).ok()).collect();
    assert_eq!(frames.take_raw(request), Err(AllocError::OutOfMemory));
    got
}

/// Returns a length for each of the search methods.
fn lengths() -> impl Iterator<Item = u64> {
    [1, 2, WORD, WORD + 1, BLOCK, 2 * BLOCK, BLOCK + 1, SECTION, SECTION + BLOCK].into_iter()
}

#[test]
fn low_memory_is_used_when_nothing_else_is_left() {
    for len in lengths() {
        for request in [AllocRequest::frames(len), AllocRequest::frames(len).movable()] {
            let (frames, memory) = (Frames::new(OneCpu), Memory::new(ALL));
            let _hotplug = plugged(&frames, &memory);
            let got = all_of(&frames, request);
            let above = got.iter().take_while(|&&got| !is_low(got)).count();
            assert!(above > 0 && above < got.len(), "{len}: {above} of {}", got.len());
            assert!(got[above..].iter().all(|&got| is_low(got)), "{len}: high memory was left");
            frames.validated().unwrap();
        }
    }
}

#[test]
fn a_node_that_is_asked_for_prefers_its_memory_above_the_boundary() {
    let node = NodeId::ZERO;
    for len in lengths() {
        let request = AllocRequest::frames(len);
        for request in [
            request.node(NodeChoice::Near(node)),
            request.node(NodeChoice::Only(node)),
            request.node(NodeChoice::Leaving(node)),
        ] {
            let (frames, memory) = (Frames::new(OneCpu), Memory::new(ALL));
            let _hotplug = plugged(&frames, &memory);
            assert!(!is_low(frames.take_raw(request).unwrap()), "{request:?}");
        }
    }
}

#[test]
fn a_request_with_a_bound_finds_low_memory() {
    for len in lengths() {
        let (frames, memory) = (Frames::new(OneCpu), Memory::new(ALL));
        let _hotplug = plugged(&frames, &memory);
        // After an allocation from above, so that the CPU's hint is there.
        assert!(!is_low(frames.take_raw(AllocRequest::frames(len)).unwrap()));
        let low = all_of(&frames, AllocRequest::frames(len).within(..pfn(LOW)));
        assert!(!low.is_empty() && low.iter().all(|&got| is_low(got)), "{len}");
        assert!(!is_low(frames.take_raw(AllocRequest::frames(len)).unwrap()));
        // If its bound allows it, it also takes memory above the boundary, after low memory.
        let within = all_of(&frames, AllocRequest::frames(len).within(..pfn(ALL - BLOCK)));
        assert!(within.iter().all(|&got| !is_low(got) && got.end() <= pfn(ALL - BLOCK)), "{len}");
    }
}

#[test]
fn all_low_memory_is_left_to_requests_with_a_bound() {
    let low = AllocRequest::frames(1).within(..pfn(LOW));
    let (frames, memory) = (Frames::new(OneCpu), Memory::new(ALL));
    let _unused = plugged(&frames, &memory);
    let all = all_of(&frames, low).len();
    let (frames, memory) = (Frames::new(OneCpu), Memory::new(ALL));
    let _hotplug = plugged(&frames, &memory);
    let mut rng = Rng::with_seed(5);
    let mut held = vec![];
    // Each thread uses a part of one pageblock, and a quarter of the pageblocks above.
    let most = usize::try_from((ALL - LOW) / BLOCK / 4).unwrap();
    for _ in 0..2000 {
        if !held.is_empty() && (rng.bool() || held.len() == most) {
            frames.give_raw(held.swap_remove(rng.usize(..held.len()))).unwrap();
        } else {
            let len = [1, 2, WORD, BLOCK][rng.usize(..4)];
            let got = frames.take_raw(AllocRequest::frames(len)).unwrap();
            assert!(!is_low(got));
            held.push(got);
        }
    }
    // The bitmap frames of the sections above are an exception: they lie in boot memory.
    let bitmaps = usize::try_from((ALL - LOW) / SECTION).unwrap();
    assert!(all_of(&frames, low).len() + bitmaps >= all);
}

#[test]
fn boot_memory_on_both_sides_is_used_from_above_the_boundary() {
    for len in lengths() {
        let (frames, memory) = (Frames::new(OneCpu), Memory::new(ALL));
        let _hotplug = boot(&frames, &memory, range(0, ALL), LOW);
        assert!(!is_low(frames.take_raw(AllocRequest::frames(len)).unwrap()), "{len}");
    }
}

#[test]
fn every_cpu_leaves_low_memory_when_other_memory_comes() {
    for len in [1, BLOCK] {
        let (frames, memory) = (Frames::new(Cpus), Memory::new(ALL));
        let mut hotplug = boot(&frames, &memory, range(0, LOW), LOW);
        hotplug.announce(range(LOW, ALL - LOW)).unwrap();
        for cpu in 0..3 {
            Cpus::run_on(cpu);
            assert!(is_low(frames.take_raw(AllocRequest::frames(len)).unwrap()));
        }
        bring(&mut hotplug, range(LOW, ALL - LOW), OnlineType::Kernel);
        for cpu in 0..3 {
            Cpus::run_on(cpu);
            assert!(!is_low(frames.take_raw(AllocRequest::frames(len)).unwrap()), "{cpu}");
        }
        Cpus::run_on(0);
    }
}

#[test]
fn unreported_memory_is_searched_above_the_boundary_first() {
    for len in lengths() {
        let (frames, memory) = (Frames::new(OneCpu), Memory::new(ALL));
        let _hotplug = plugged(&frames, &memory);
        // Memory that is not reported is preferred while there is a reporter.
        let settings = report::Settings::default();
        let _reporter = report::Reporter::new(&frames, settings, Contents::Undefined).unwrap();
        assert!(!is_low(frames.take_raw(AllocRequest::frames(len)).unwrap()), "{len}");
    }
}

#[test]
fn movable_memory_comes_before_kernel_memory_on_either_side() {
    let (frames, memory) = (Frames::new(OneCpu), Memory::new(ALL));
    let mut hotplug = boot(&frames, &memory, range(0, LOW), LOW);
    hotplug.announce(range(LOW, ALL - LOW)).unwrap();
    let (movable, kernel) = (range(LOW, SECTION), range(LOW + SECTION, SECTION));
    bring(&mut hotplug, movable, OnlineType::Movable);
    bring(&mut hotplug, kernel, OnlineType::Kernel);
    let got = all_of(&frames, AllocRequest::frames(BLOCK).movable());
    let place = |got: &PfnRange| match () {
        () if movable.covers(*got) => 0,
        () if kernel.covers(*got) => 1,
        () => 2,
    };
    assert!(got.is_sorted_by_key(place));
    assert_eq!(got.iter().filter(|got| place(got) < 2).count() as u64, 2 * SECTION / BLOCK);
}

#[test]
fn without_a_boundary_the_lowest_memory_is_used_first() {
    let (frames, memory) = (Frames::new(OneCpu), Memory::new(ALL));
    let _hotplug = boot(&frames, &memory, range(0, ALL), 0);
    assert!(is_low(frames.take_raw(AllocRequest::frames(BLOCK)).unwrap()));
    assert!(is_low(frames.take_raw(AllocRequest::frames(SECTION + BLOCK)).unwrap()));
}

#[test]
fn a_request_goes_low_only_if_nothing_above_would_do() {
    let mut seen = 0;
    for seed in 0..16 {
        let mut rng = Rng::with_seed(seed);
        let (frames, memory) = (Frames::new(OneCpu), Memory::new(ALL));
        let _hotplug = plugged(&frames, &memory);
        // Holes of all sizes above the boundary.
        let hole = AllocRequest::frames(1 + rng.u64(..WORD));
        let held = all_of(&frames, hole);
        let (low, mut above): (Vec<_>, Vec<_>) = held.into_iter().partition(|&got| is_low(got));
        rng.shuffle(&mut above);
        above.drain(..rng.usize(1..above.len())).for_each(|got| frames.give_raw(got).unwrap());
        // The CPU continues with its hint, so that is above the boundary as well.
        let one = frames.take_raw(hole).unwrap();
        assert!(!is_low(one));
        frames.give_raw(one).unwrap();
        // Low memory could serve the request as well.
        low.into_iter().step_by(2).for_each(|got| frames.give_raw(got).unwrap());
        // A run of bits in one word, or a pageblock.
        let len = [1, 2, 4, WORD, BLOCK][rng.usize(..5)];
        let request = AllocRequest::frames(len).aligned(len);
        while let Ok(got) = frames.take_raw(request) {
            if !is_low(got) {
                continue;
            }
            let mut left = (LOW..ALL).step_by(usize::try_from(len).unwrap());
            let fits = left.find(|&at| frames.take_raw(request.at(pfn(at))).is_ok());
            assert_eq!(fits, None, "seed {seed}, {len}: {got}");
            seen += 1;
            break;
        }
    }
    assert!(seen > 4, "low memory must be needed at times: {seen}");
}
