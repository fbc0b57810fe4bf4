//! Tests that free runs are found wherever they begin, and what a failed search costs.
#![allow(clippy::cast_possible_truncation, reason = "the machines of the tests are small")]

use crate::instruction_count;
use fastrand::Rng;
use hotmem::*;
use hotmem_testkit::{Memory, PAGEBLOCK, SECTION, numbers, pfn, range};
use hotmem_testkit::{RawRanges as _, Validated as _};

/// Allocates all memory frame by frame, and frees the frames of `free` again.
fn use_all_except(frames: &Frames<OneCpu>, free: PfnRange) {
    while frames.alloc_range(AllocRequest::frames(1)).is_ok() {}
    frames.free_range(free).unwrap();
}

#[test]
fn a_free_run_is_found_wherever_it_begins() {
    let at = 200 * PAGEBLOCK % SECTION + PAGEBLOCK;
    let cases = [
        (at + 31, 2),
        (at + 16, 32),
        (at + 16, 33),
        (at + 1, 65),
        (at + 12, 1000),
        (SECTION - PAGEBLOCK, 2 * PAGEBLOCK),
        (SECTION - 7 * PAGEBLOCK, SECTION + 10 * PAGEBLOCK),
    ];
    for (start, len) in cases {
        let (frames, memory) = (Frames::new(OneCpu), Memory::new(3 * SECTION));
        let _hotplug = hotmem_testkit::boot(&frames, &memory, 3 * SECTION);
        let free = range(start, len);
        use_all_except(&frames, free);
        let longer = frames.alloc_contiguous(AllocRequest::frames(len + 1));
        assert!(matches!(longer, Err(AllocError::OutOfMemory)), "{longer:?}");
        let found = frames.alloc_contiguous(AllocRequest::frames(len)).unwrap();
        assert_eq!(found.range(), free);
        drop(found);
        let bound = pfn(start + 1);
        let above = frames.alloc_contiguous(AllocRequest::frames(len - 1).within(bound..)).unwrap();
        assert_eq!(above.range(), range(start + 1, len - 1));
        drop(above);
        frames.validated().unwrap();
    }
}

/// Returns the lowest run of free frames that a naive search finds.
fn naive_search(is_free: &[bool], request: (u64, u64), bounds: PfnRange) -> Option<PfnRange> {
    let (len, align) = request;
    numbers(bounds)
        .filter(|start| start % align == 0 && start + len <= bounds.end().number())
        .find(|&start| is_free[start as usize..(start + len) as usize].iter().all(|&free| free))
        .map(|start| range(start, len))
}

#[test]
fn contiguous_requests_agree_with_a_naive_search() {
    let size = SECTION + 3 * PAGEBLOCK;
    let mut rng = Rng::with_seed(56);
    let (frames, memory) = (Frames::new(OneCpu), Memory::new(size));
    let _hotplug = hotmem_testkit::boot(&frames, &memory, size);
    let mut is_free = vec![false; size as usize];
    let mut used = Vec::new();
    while let Ok(frame) = frames.alloc_range(AllocRequest::frames(1)) {
        used.push(frame.start().number());
    }
    used.sort_unstable();
    let (mut found_runs, mut refused) = (0, 0);
    for _ in 0..300 {
        // Free a few runs of frames that are in use and not metadata.
        for _ in 0..4 {
            let start = used[rng.usize(..used.len())];
            let len = 1 << rng.u32(..11);
            for frame in start..(start + len).min(size) {
                if !is_free[frame as usize] && used.binary_search(&frame).is_ok() {
                    frames.free_range(range(frame, 1)).unwrap();
                    is_free[frame as usize] = true;
                }
            }
        }
        let longest = 1 << rng.u32(..12);
        let request = (rng.u64(1..=longest), 1 << rng.u32(..8));
        let lower = rng.u64(..size / 2);
        let bounds = range(lower, rng.u64(1..=size - lower));
        let alloc =
            AllocRequest::frames(request.0).aligned(request.1).within(bounds.start()..bounds.end());
        let expected = naive_search(&is_free, request, bounds);
        let quick = frames.alloc(alloc).map(|found| found.range());
        assert!(quick.is_err() || expected.is_some());
        match (frames.alloc_contiguous(alloc), expected) {
            (Ok(found), Some(_)) => {
                let found = found.into_raw();
                assert!(bounds.covers(found) && found.start().number() % request.1 == 0);
                assert_eq!(found.frames(), request.0);
                for frame in numbers(found) {
                    assert!(std::mem::replace(&mut is_free[frame as usize], false));
                }
                found_runs += 1;
            }
            (Err(AllocError::OutOfMemory), None) => refused += 1,
            (result, expected) => panic!("{alloc:?}: {result:?}, expected {expected:?}"),
        }
    }
    assert!(found_runs > 5 && refused > 5, "{found_runs} found, {refused} refused");
    frames.validated().unwrap();
}

/// The environment variable with the number of GiB above the bound.
const GIB_VARIABLE: &str = "HOTMEM_BOUNDED_GIB";
const CALLS: u32 = 4;

/// Makes requests that fail. valgrind counts the instructions of this function only.
#[inline(never)]
fn counted_refusals(frames: &Frames<OneCpu>, bound: Pfn) {
    for len in [1, 2, PAGEBLOCK] {
        let requests = [
            AllocRequest::frames(len).within(..bound),
            AllocRequest::frames(len).within(..bound).node(NodeChoice::Near(NodeId::ZERO)),
            AllocRequest::frames(len).within(..bound).node(NodeChoice::Only(NodeId::ZERO)),
        ];
        for request in requests.into_iter().cycle().take(requests.len() * CALLS as usize) {
            assert_eq!(frames.alloc_range(request), Err(AllocError::OutOfMemory));
        }
    }
}

/// Makes requests below a bound fail on a machine with this much free memory above the bound. Ends
/// the process then.
fn count_and_exit(gib: u64) {
    let boot = 8 * SECTION;
    let memory = Memory::new(boot);
    let frames = Frames::new(OneCpu);
    let mut hotplug = hotmem_testkit::boot(&frames, &memory, boot);
    let above = range(1 << 22, Bytes::gib(gib).frames());
    hotplug.announce(above).unwrap();
    hotplug.add(above).unwrap();
    hotplug.online(above, OnlineType::Kernel, &mut NoHooks).unwrap();
    let bound = pfn(2 * SECTION);
    for len in [PAGEBLOCK, 1] {
        while frames.alloc_range(AllocRequest::frames(len).within(..bound)).is_ok() {}
    }
    counted_refusals(&frames, bound);
    std::process::exit(0);
}

#[test]
fn a_refusal_below_a_bound_does_not_read_the_memory_above() {
    if let Ok(gib) = std::env::var(GIB_VARIABLE) {
        return count_and_exit(gib.parse().unwrap());
    }
    if !instruction_count::can_count() {
        return;
    }
    let test = "contiguous::a_refusal_below_a_bound_does_not_read_the_memory_above";
    let [small, large] = ["8", "2048"]
        .map(|gib| instruction_count::instructions(test, "counted_refusals", (GIB_VARIABLE, gib)));
    println!("{small:.0} instructions with 8 GiB above the bound, {large:.0} with 2 TiB");
    assert!(small > 1000.0 && large < 2.0 * small, "{small:.0} with 8 GiB, {large:.0} with 2 TiB");
}
