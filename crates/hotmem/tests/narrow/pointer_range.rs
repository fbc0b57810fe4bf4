//! Tests that memory which pointers cannot reach is refused: in a 32-bit kernel, all memory above
//! 4 GiB.

use hotmem::geometry::FRAME_SIZE;
use hotmem::*;
use hotmem_testkit::PFN_LIMIT;
use hotmem_testkit::Validated as _;
use hotmem_testkit::{Memory, PAGEBLOCK, SECTION, boot, pfn, range, region_range};

/// The end of the frames that a pointer of this target reaches.
const REACHABLE_FRAMES: u64 = match usize::BITS {
    32 => 1 << 20,
    _ => PFN_LIMIT,
};

#[test]
fn memory_beyond_all_pointers_is_not_announced() {
    let memory = Memory::new(SECTION);
    let frames = Frames::new(OneCpu);
    let mut hotplug = boot(&frames, &memory, SECTION);
    let counts = frames.counts();
    let across_the_end = PfnRange::with_len(pfn(REACHABLE_FRAMES - PAGEBLOCK), 2 * PAGEBLOCK);
    let ranges = across_the_end.into_iter().chain([range(PFN_LIMIT - PAGEBLOCK, PAGEBLOCK)]);
    for range in ranges.filter(|range| range.end() > pfn(REACHABLE_FRAMES)) {
        let refused = RangeError { range, kind: RangeErrorKind::Unreachable };
        assert_eq!(hotplug.announce(range), Err(AnnounceError::Range(refused)));
        assert_eq!(frames.counts(), counts);
    }
    let last_block = range(REACHABLE_FRAMES - PAGEBLOCK, PAGEBLOCK);
    let region = hotplug.announce(last_block).unwrap();
    assert_eq!(region_range(&hotplug, region), Some(last_block));
    frames.validated().unwrap();
}

#[test]
fn a_machine_with_ram_that_no_pointer_reaches_is_not_started() {
    let memory = Memory::new(SECTION);
    let frames = Frames::new(OneCpu);
    let low = BootRange { start: 0, len: range(0, SECTION).bytes() };
    let high_ram = BootRange {
        start: (REACHABLE_FRAMES - PAGEBLOCK) * FRAME_SIZE,
        len: range(0, 2 * PAGEBLOCK).bytes(),
    };
    if high_ram.start + high_ram.len.0 > PFN_LIMIT * FRAME_SIZE {
        return;
    }
    let ram = [low, high_ram];
    let started = hotmem_testkit::start(&frames, memory.direct_map(), &ram);
    assert_eq!(started.err(), Some(BootError::Unreachable(high_ram)));
    assert_eq!(frames.counts(), Counts::default());
    // Reserved ranges that no pointer reaches, such as those of devices, are allowed.
    let map = BootMap { reserved: &[high_ram], ..BootMap::from(&ram[..1]) };
    hotmem_testkit::start(&frames, memory.direct_map(), map).unwrap();
    frames.validated().unwrap();
}
