//! Tests that as many CPUs have records of their own as the boot map says.

use hotmem::*;
use hotmem_testkit::{Cpus, Memory, PAGEBLOCK, RawRanges as _, SECTION, Validated as _, range};
use std::collections::{BTreeMap, BTreeSet};

/// The number of CPUs that the tests allocate on.
const CPUS: u64 = 300;
const BOOT_FRAMES: u64 = (2 * CPUS * PAGEBLOCK).next_multiple_of(SECTION);

fn with_cpus(cpus: u64, test: impl FnOnce(&Frames<Cpus>, &mut Hotplug<'_, Cpus>)) {
    let memory = Memory::new(BOOT_FRAMES);
    let frames = Frames::new(Cpus);
    let ram = [BootRange { start: 0, len: range(0, BOOT_FRAMES).bytes() }];
    let map = BootMap { cpus: u32::try_from(cpus).unwrap(), ..BootMap::from(&ram) };
    let mut hotplug = hotmem_testkit::start(&frames, memory.direct_map(), map).unwrap();
    test(&frames, &mut hotplug);
    frames.validated().unwrap();
}

/// Allocates a frame on each CPU. Returns the frames.
fn allocate_on_each(frames: &Frames<Cpus>) -> Vec<u64> {
    let on = |cpu: u64| {
        Cpus::run_on(usize::try_from(cpu).unwrap());
        frames.alloc_range(AllocRequest::frames(1)).unwrap().start().number()
    };
    (0..CPUS).map(on).collect()
}

#[test]
fn each_cpu_allocates_from_a_pageblock_of_its_own() {
    with_cpus(CPUS, |frames, _| {
        let allocated = allocate_on_each(frames);
        let blocks: BTreeSet<u64> = allocated.iter().map(|frame| frame / PAGEBLOCK).collect();
        assert_eq!(blocks.len() as u64, CPUS);
        // The second frame of most CPUs comes from the pageblock of the first. A few pageblocks are
        // full, because in the small geometry a bitmap frame can take the last frame of one.
        let again = allocate_on_each(frames);
        let in_same_block =
            again.iter().zip(&allocated).filter(|(b, a)| *b / PAGEBLOCK == *a / PAGEBLOCK).count();
        assert!(in_same_block as u64 >= CPUS * 9 / 10, "{in_same_block}");
    });
}

#[test]
fn cpus_beyond_those_of_the_boot_map_share_records() {
    with_cpus(8, |frames, _| {
        let mut blocks = BTreeMap::<u64, u64>::new();
        for frame in allocate_on_each(frames) {
            *blocks.entry(frame / PAGEBLOCK).or_default() += 1;
        }
        assert_eq!(blocks.values().sum::<u64>(), CPUS);
        assert!(blocks.len() as u64 <= 8 + CPUS / PAGEBLOCK + 1, "{}", blocks.len());
    });
}

#[test]
fn the_pageblock_of_the_hint_of_any_cpu_is_found_by_all_and_removed() {
    with_cpus(CPUS, |frames, hotplug| {
        let added = range(BOOT_FRAMES, BOOT_FRAMES);
        hotplug.announce(added).unwrap();
        hotplug.add(added).unwrap();
        hotplug.online(added, OnlineType::Movable, &mut NoHooks).unwrap();
        let movable = AllocRequest::frames(1).movable();
        for cpu in 0..CPUS {
            Cpus::run_on(usize::try_from(cpu).unwrap());
            let frame = frames.alloc_range(movable).unwrap();
            frames.free_range(frame).unwrap();
        }
        Cpus::run_on(0);
        let mut request = hotplug.offline(added).unwrap();
        let done = request.poll(hotplug, &mut NoHooks, Budget::UNLIMITED);
        assert_eq!(done, Progress::Ready(added));
        hotplug.remove(added).unwrap();
    });
}

/// A record has 128 bytes. The records of the first 8 CPUs lie in `Frames`, all others in boot
/// memory.
#[test]
fn records_are_metadata_of_boot_memory() {
    let metadata_frames = |cpus| {
        let mut sum = 0;
        with_cpus(cpus, |frames, _| {
            sum = frames.metadata().map(|metadata| metadata.frames.frames()).sum();
        });
        sum
    };
    let without_records = metadata_frames(8);
    assert_eq!([0, 1].map(metadata_frames), [without_records; 2]);
    assert_eq!([9, 40, 41, 256].map(|cpus| metadata_frames(cpus) - without_records), [1, 1, 2, 8]);
}
