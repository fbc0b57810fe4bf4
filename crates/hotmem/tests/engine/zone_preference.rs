//! Tests that requests without an upper bound prefer kernel memory above the boundary, and leave
//! low memory to requests that need low memory.

use fastrand::Rng;
use hotmem::*;
use hotmem_testkit::{BITMAP_WORD_FRAMES, Cpus, Memory, PAGEBLOCK, SECTION, pfn, range};
use hotmem_testkit::{RawRanges as _, Validated as _};

/// The boundary of low memory: the end of boot memory in most tests, and the start of hotplugged
/// memory.
const LOW_END: u64 = 3 * SECTION;
const MEMORY_FRAMES: u64 = 8 * SECTION;

fn boot<'f, P: Platform>(
    frames: &'f Frames<P>,
    memory: &Memory,
    boot: PfnRange,
    low_end: u64,
) -> Hotplug<'f, P> {
    let ram = [BootRange { start: boot.start().phys_addr(), len: boot.bytes() }];
    let map = BootMap { low_end: pfn(low_end), ..BootMap::from(&ram) };
    hotmem_testkit::start(frames, memory.direct_map(), map).unwrap()
}

/// Boots an instance with low memory, allocates there, and then adds memory above the boundary.
fn boot_and_plug<'f, P: Platform>(frames: &'f Frames<P>, memory: &Memory) -> Hotplug<'f, P> {
    let mut hotplug = boot(frames, memory, range(0, LOW_END), LOW_END);
    // After this, the CPU's hints lead to low memory.
    for request in [AllocRequest::frames(1), AllocRequest::frames(PAGEBLOCK)] {
        let allocated = frames.alloc_range(request).unwrap();
        assert!(is_low(allocated));
        frames.free_range(allocated).unwrap();
    }
    hotplug.announce(range(LOW_END, MEMORY_FRAMES - LOW_END)).unwrap();
    plug(&mut hotplug, range(LOW_END, MEMORY_FRAMES - LOW_END), OnlineType::Kernel);
    hotplug
}

fn plug<P: Platform>(hotplug: &mut Hotplug<'_, P>, range: PfnRange, kind: OnlineType) {
    hotplug.add(range).unwrap();
    hotplug.online(range, kind, &mut NoHooks).unwrap();
}

fn is_low(range: PfnRange) -> bool {
    range.start() < pfn(LOW_END)
}

/// Allocates by `request` until that fails, and returns the ranges in order.
fn allocate_all<P: Platform>(frames: &Frames<P>, request: AllocRequest) -> Vec<PfnRange> {
    let allocated: Vec<_> = std::iter::from_fn(|| frames.alloc_range(request).ok()).collect();
    assert_eq!(frames.alloc_range(request), Err(AllocError::OutOfMemory));
    allocated
}

/// Returns lengths such that each search method of the allocator serves some of them.
fn lengths() -> impl Iterator<Item = u64> {
    [
        1,
        2,
        BITMAP_WORD_FRAMES,
        BITMAP_WORD_FRAMES + 1,
        PAGEBLOCK,
        2 * PAGEBLOCK,
        PAGEBLOCK + 1,
        SECTION,
        SECTION + PAGEBLOCK,
    ]
    .into_iter()
}

#[test]
fn low_memory_is_used_only_when_no_other_memory_is_free() {
    for len in lengths() {
        for request in [AllocRequest::frames(len), AllocRequest::frames(len).movable()] {
            let (frames, memory) = (Frames::new(OneCpu), Memory::new(MEMORY_FRAMES));
            let _hotplug = boot_and_plug(&frames, &memory);
            let allocated = allocate_all(&frames, request);
            let above = allocated.iter().take_while(|&&allocated| !is_low(allocated)).count();
            assert!(above > 0 && above < allocated.len(), "{len}: {above} of {}", allocated.len());
            assert!(
                allocated[above..].iter().all(|&allocated| is_low(allocated)),
                "{len}: memory above the boundary was still free"
            );
            frames.validated().unwrap();
        }
    }
}

#[test]
fn a_request_that_names_a_node_prefers_memory_above_the_boundary() {
    let node = NodeId::ZERO;
    for len in lengths() {
        let request = AllocRequest::frames(len);
        for request in [
            request.node(NodeChoice::Near(node)),
            request.node(NodeChoice::Only(node)),
            request.node(NodeChoice::Avoiding(node)),
        ] {
            let (frames, memory) = (Frames::new(OneCpu), Memory::new(MEMORY_FRAMES));
            let _hotplug = boot_and_plug(&frames, &memory);
            assert!(!is_low(frames.alloc_range(request).unwrap()), "{request:?}");
        }
    }
}

#[test]
fn a_request_with_a_bound_finds_low_memory() {
    for len in lengths() {
        let (frames, memory) = (Frames::new(OneCpu), Memory::new(MEMORY_FRAMES));
        let _hotplug = boot_and_plug(&frames, &memory);
        // Make memory above the boundary the CPU's hint.
        assert!(!is_low(frames.alloc_range(AllocRequest::frames(len)).unwrap()));
        let low = allocate_all(&frames, AllocRequest::frames(len).within(..pfn(LOW_END)));
        assert!(!low.is_empty() && low.iter().all(|&allocated| is_low(allocated)), "{len}");
        assert!(!is_low(frames.alloc_range(AllocRequest::frames(len)).unwrap()));
        // Low memory is used up, so a request with a higher bound gets memory above the boundary.
        let within = allocate_all(
            &frames,
            AllocRequest::frames(len).within(..pfn(MEMORY_FRAMES - PAGEBLOCK)),
        );
        assert!(
            within.iter().all(|&allocated| !is_low(allocated)
                && allocated.end() <= pfn(MEMORY_FRAMES - PAGEBLOCK)),
            "{len}"
        );
    }
}

#[test]
fn all_low_memory_is_left_to_requests_with_a_bound() {
    let low = AllocRequest::frames(1).within(..pfn(LOW_END));
    let (frames, memory) = (Frames::new(OneCpu), Memory::new(MEMORY_FRAMES));
    let _hotplug = boot_and_plug(&frames, &memory);
    let all_low_frames = allocate_all(&frames, low).len();
    let (frames, memory) = (Frames::new(OneCpu), Memory::new(MEMORY_FRAMES));
    let _hotplug = boot_and_plug(&frames, &memory);
    let mut rng = Rng::with_seed(5);
    let mut held = vec![];
    // Use at most a quarter of the pageblocks above the boundary.
    let max_held = usize::try_from((MEMORY_FRAMES - LOW_END) / PAGEBLOCK / 4).unwrap();
    for _ in 0..2000 {
        if !held.is_empty() && (rng.bool() || held.len() == max_held) {
            frames.free_range(held.swap_remove(rng.usize(..held.len()))).unwrap();
        } else {
            let len = [1, 2, BITMAP_WORD_FRAMES, PAGEBLOCK][rng.usize(..4)];
            let allocated = frames.alloc_range(AllocRequest::frames(len)).unwrap();
            assert!(!is_low(allocated));
            held.push(allocated);
        }
    }
    // The sections above the boundary may have their bitmaps in low memory, a frame for each section.
    let bitmaps = usize::try_from((MEMORY_FRAMES - LOW_END) / SECTION).unwrap();
    assert!(allocate_all(&frames, low).len() + bitmaps >= all_low_frames);
}

#[test]
fn boot_memory_above_the_boundary_is_used_before_that_below() {
    for len in lengths() {
        let (frames, memory) = (Frames::new(OneCpu), Memory::new(MEMORY_FRAMES));
        let _hotplug = boot(&frames, &memory, range(0, MEMORY_FRAMES), LOW_END);
        assert!(!is_low(frames.alloc_range(AllocRequest::frames(len)).unwrap()), "{len}");
    }
}

#[test]
fn every_cpu_stops_using_low_memory_when_memory_above_the_boundary_is_added() {
    for len in [1, PAGEBLOCK] {
        let (frames, memory) = (Frames::new(Cpus), Memory::new(MEMORY_FRAMES));
        let mut hotplug = boot(&frames, &memory, range(0, LOW_END), LOW_END);
        hotplug.announce(range(LOW_END, MEMORY_FRAMES - LOW_END)).unwrap();
        for cpu in 0..3 {
            Cpus::run_on(cpu);
            assert!(is_low(frames.alloc_range(AllocRequest::frames(len)).unwrap()));
        }
        plug(&mut hotplug, range(LOW_END, MEMORY_FRAMES - LOW_END), OnlineType::Kernel);
        for cpu in 0..3 {
            Cpus::run_on(cpu);
            assert!(!is_low(frames.alloc_range(AllocRequest::frames(len)).unwrap()), "{cpu}");
        }
        Cpus::run_on(0);
    }
}

#[test]
fn unreported_memory_is_searched_above_the_boundary_first() {
    for len in lengths() {
        let (frames, memory) = (Frames::new(OneCpu), Memory::new(MEMORY_FRAMES));
        let _hotplug = boot_and_plug(&frames, &memory);
        // While a reporter exists, requests prefer memory that is not reported.
        let settings = report::ReporterSettings::default();
        let _reporter = report::Reporter::new(&frames, settings, Contents::Undefined).unwrap();
        assert!(!is_low(frames.alloc_range(AllocRequest::frames(len)).unwrap()), "{len}");
    }
}

#[test]
fn movable_memory_comes_before_kernel_memory_on_either_side() {
    let (frames, memory) = (Frames::new(OneCpu), Memory::new(MEMORY_FRAMES));
    let mut hotplug = boot(&frames, &memory, range(0, LOW_END), LOW_END);
    hotplug.announce(range(LOW_END, MEMORY_FRAMES - LOW_END)).unwrap();
    let (movable, kernel) = (range(LOW_END, SECTION), range(LOW_END + SECTION, SECTION));
    plug(&mut hotplug, movable, OnlineType::Movable);
    plug(&mut hotplug, kernel, OnlineType::Kernel);
    let allocated = allocate_all(&frames, AllocRequest::frames(PAGEBLOCK).movable());
    let preference = |allocated: &PfnRange| match () {
        () if movable.covers(*allocated) => 0,
        () if kernel.covers(*allocated) => 1,
        () => 2,
    };
    assert!(allocated.is_sorted_by_key(preference));
    assert_eq!(
        allocated.iter().filter(|allocated| preference(allocated) < 2).count() as u64,
        2 * SECTION / PAGEBLOCK
    );
}

#[test]
fn without_a_boundary_the_lowest_memory_is_used_first() {
    let (frames, memory) = (Frames::new(OneCpu), Memory::new(MEMORY_FRAMES));
    let _hotplug = boot(&frames, &memory, range(0, MEMORY_FRAMES), 0);
    assert!(is_low(frames.alloc_range(AllocRequest::frames(PAGEBLOCK)).unwrap()));
    assert!(is_low(frames.alloc_range(AllocRequest::frames(SECTION + PAGEBLOCK)).unwrap()));
}

#[test]
fn a_request_uses_low_memory_only_if_no_memory_above_the_boundary_fits() {
    let mut requests_in_low_memory = 0;
    for seed in 0..16 {
        let mut rng = Rng::with_seed(seed);
        let (frames, memory) = (Frames::new(OneCpu), Memory::new(MEMORY_FRAMES));
        let _hotplug = boot_and_plug(&frames, &memory);
        // Leave free runs of several sizes above the boundary.
        let short_run = AllocRequest::frames(1 + rng.u64(..BITMAP_WORD_FRAMES));
        let held = allocate_all(&frames, short_run);
        let (low, mut above): (Vec<_>, Vec<_>) =
            held.into_iter().partition(|&allocated| is_low(allocated));
        rng.shuffle(&mut above);
        above
            .drain(..rng.usize(1..above.len()))
            .for_each(|allocated| frames.free_range(allocated).unwrap());
        // Make memory above the boundary the CPU's hint.
        let one = frames.alloc_range(short_run).unwrap();
        assert!(!is_low(one));
        frames.free_range(one).unwrap();
        // Free low memory too, which could serve the requests as well.
        low.into_iter().step_by(2).for_each(|allocated| frames.free_range(allocated).unwrap());
        // Request a run in one word of a frame bitmap, or a pageblock.
        let len = [1, 2, 4, BITMAP_WORD_FRAMES, PAGEBLOCK][rng.usize(..5)];
        let request = AllocRequest::frames(len).aligned(len);
        while let Ok(allocated) = frames.alloc_range(request) {
            if !is_low(allocated) {
                continue;
            }
            let mut starts = (LOW_END..MEMORY_FRAMES).step_by(usize::try_from(len).unwrap());
            let fits = starts.find(|&start| frames.alloc_range(request.at(pfn(start))).is_ok());
            assert_eq!(fits, None, "seed {seed}, {len}: {allocated}");
            requests_in_low_memory += 1;
            break;
        }
    }
    assert!(
        requests_in_low_memory > 4,
        "requests must use low memory sometimes: {requests_in_low_memory}"
    );
}
