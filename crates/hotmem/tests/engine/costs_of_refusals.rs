//! Counts the instructions of requests that cannot be met, on machines of different sizes.

use crate::instruction_count::{can_count, instructions};
use hotmem::*;
use hotmem_testkit::RawRanges as _;
use hotmem_testkit::{Memory, PAGEBLOCK, SECTION, env_number, pfn, range};

/// The environment variable that tells the process under valgrind how much memory is hotplugged, in
/// GiB, whether it is fragmented, and for how many frames it makes requests.
const VARIABLE: &str = "HOTMEM_TEST_REFUSALS";
const TEST: &str = "costs_of_refusals::a_refusal_costs_the_same_on_a_large_machine";
/// The first hotplugged frame.
const START: u64 = 1 << 22;

/// Makes requests that fail. valgrind counts the instructions of this function only.
#[inline(never)]
fn counted_refusals(frames: &Frames<OneCpu>, requests: &[AllocRequest]) {
    for &request in requests {
        assert_eq!(frames.alloc_range(request), Err(AllocError::OutOfMemory), "{request:?}");
    }
}

/// Returns requests for this many frames: without bounds, below a bound, above one, and between two;
/// anywhere, near a node, and only on a node.
fn requests(frames: u64, memory: PfnRange) -> Vec<AllocRequest> {
    let quarter = memory.frames() / 4;
    let [low, high] = [1, 3].map(|n| pfn(memory.start().number() + n * quarter));
    let any = AllocRequest::frames(frames);
    let bounded = [any, any.within(..high), any.within(low..), any.within(low..high)];
    let node = |choice: Option<NodeChoice>| {
        bounded.map(|request| choice.map_or(request, |choice| request.node(choice)))
    };
    [None, Some(NodeChoice::Near(NodeId::ZERO)), Some(NodeChoice::Only(NodeId::ZERO))]
        .into_iter()
        .flat_map(node)
        .collect()
}

/// Boots an instance, hotplugs memory, and allocates all memory. If `is_fragmented` is true, frees a
/// frame of each pageblock. Then makes requests fail for each of these numbers of frames.
fn refuse(gib: u64, is_fragmented: bool, lengths: &[u64]) {
    let boot = 8 * SECTION;
    let memory = Memory::new(boot);
    let frames = Frames::new(OneCpu);
    let mut hotplug = hotmem_testkit::boot(&frames, &memory, boot);
    let added = range(START, Bytes::gib(gib).frames());
    hotplug.announce(added).unwrap();
    hotplug.add(added).unwrap();
    hotplug.online(added, OnlineType::Kernel, &mut NoHooks).unwrap();
    let bitmaps = frames.alloc_range(AllocRequest::frames(4 * PAGEBLOCK)).unwrap();
    for order in [18, 15, 9, 0] {
        take_all(&frames, AllocRequest::order(order));
    }
    if is_fragmented {
        // The bitmaps of the pageblocks that are divided now need memory.
        frames.free_range(bitmaps).unwrap();
        for block in added.chunks(PAGEBLOCK) {
            frames.free_range(range(block.start().number() + 100, 1)).unwrap();
        }
        take_all(&frames, AllocRequest::frames(1).within(..added.start()));
    }
    for &len in lengths {
        let requests = requests(len, added);
        // The first failures clear what is stale in the trees.
        for &request in &requests {
            assert!(frames.alloc_range(request).is_err());
        }
        counted_refusals(&frames, &requests);
    }
}

fn take_all(frames: &Frames<OneCpu>, request: AllocRequest) {
    while frames.alloc_range(request).is_ok() {}
}

/// Returns the instructions of all requests for these numbers of frames.
fn count(gib: u64, is_fragmented: bool, lengths: &str) -> f64 {
    let value = format!("{gib} {is_fragmented} {lengths}");
    instructions(TEST, "counted_refusals", (VARIABLE, &value))
}

/// The requests of 1, 2 and 512 frames take as many instructions together as three times those for a
/// pageblock, the cheapest. So if all take at most 1.5 times as many on a large machine, those of one
/// length take at most 4 times as many.
#[test]
fn a_refusal_costs_the_same_on_a_large_machine() {
    if let Ok(value) = std::env::var(VARIABLE) {
        let (gib, rest) = value.split_once(' ').unwrap();
        let (is_fragmented, lengths) = rest.split_once(' ').unwrap();
        let lengths: Vec<u64> = lengths.split(' ').map(|len| len.parse().unwrap()).collect();
        return refuse(gib.parse().unwrap(), is_fragmented.parse().unwrap(), &lengths);
    }
    if !can_count() {
        return;
    }
    // valgrind takes two seconds for each TiB.
    let large = if env_number("HOTMEM_DEEP").is_some() { 32 << 10 } else { 4 << 10 };
    for (is_fragmented, lengths, large) in [(false, "1 2 512", large), (true, "2 512", 64)] {
        let [small, large] = [8, large].map(|gib| count(gib, is_fragmented, lengths));
        println!("{lengths} frames: {small:.0} instructions with 8 GiB, {large:.0} with more");
        assert!(small > 1000.0 && large < 1.5 * small, "{small:.0} with 8 GiB, {large:.0}");
    }
}
