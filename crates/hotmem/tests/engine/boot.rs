//! Compares boot maps of every kind with a naive model of each frame.

use hotmem::geometry::FRAME_SIZE;
use hotmem::*;
use hotmem_testkit::PFN_LIMIT;
use hotmem_testkit::RawRanges as _;
use hotmem_testkit::Validated as _;
use hotmem_testkit::{Cpus, Memory, PAGEBLOCK, SECTION, numbers, pfn, range};
use proptest::prelude::*;
use std::collections::BTreeSet;

/// The random maps have RAM only in windows of this many frames.
const WINDOW: u64 = if cfg!(hotmem_geometry = "small") { 4 * SECTION } else { SECTION };
/// The distances between windows.
const WINDOW_DISTANCES: [u64; 2] =
    if cfg!(hotmem_geometry = "small") { [WINDOW, 260 * SECTION] } else { [WINDOW, 2 * WINDOW] };

#[derive(Clone, Debug)]
struct Map {
    ram: Vec<BootRange>,
    reserved: Vec<BootRange>,
    mapped_below: u64,
}

fn bytes(start: u64, len: u64) -> BootRange {
    BootRange { start, len: Bytes(len) }
}

impl Map {
    fn boot<'f>(
        &self,
        frames: &'f Frames<Cpus>,
        memory: &Memory,
    ) -> Result<Hotplug<'f, Cpus>, BootError> {
        let (ram, reserved, mapped_below) =
            (&self.ram[..], &self.reserved[..], pfn(self.mapped_below));
        let map = BootMap { reserved, mapped_below, ..BootMap::from(ram) };
        hotmem_testkit::start(frames, memory.direct_map(), map)
    }

    /// Returns the frames that lie in RAM as a whole.
    fn ram(&self) -> BTreeSet<u64> {
        let whole_frames =
            |r: &BootRange| r.start.div_ceil(FRAME_SIZE)..(r.start + r.len.0) / FRAME_SIZE;
        self.ram.iter().flat_map(whole_frames).collect()
    }

    /// Returns the frames of which any byte is reserved.
    fn reserved(&self) -> BTreeSet<u64> {
        let not_empty = self.reserved.iter().filter(|r| r.len.0 > 0);
        not_empty
            .flat_map(|r| r.start / FRAME_SIZE..(r.start + r.len.0).div_ceil(FRAME_SIZE))
            .collect()
    }

    fn end(&self) -> u64 {
        self.ram().last().map_or(0, |last_frame| last_frame + 1).next_multiple_of(SECTION)
    }

    /// Boots an instance with this map, checks that its memory is that of the map, and allocates
    /// all of it.
    fn check(&self) {
        let (ram, reserved) = (self.ram(), self.reserved());
        let usable: BTreeSet<u64> = ram.difference(&reserved).copied().collect();
        let memory = Memory::new(self.end().max(SECTION));
        let frames = Frames::new(Cpus);
        let mut hotplug = match self.boot(&frames, &memory) {
            Ok(hotplug) => hotplug,
            Err(error) => {
                assert_eq!(frames.counts(), Counts::default());
                return self.check_error(error, &ram, &usable);
            }
        };
        let counts = frames.validated().unwrap();
        let metadata: BTreeSet<u64> =
            frames.metadata().flat_map(|metadata| numbers(metadata.frames)).collect();
        assert!(metadata.is_subset(&usable), "metadata lies outside usable RAM");
        assert!(metadata.iter().all(|&frame| frame < self.mapped_below));
        let free: BTreeSet<u64> = usable.difference(&metadata).copied().collect();
        assert_eq!(counts.free, free.len() as u64);
        check_regions(&hotplug, &ram);
        check_blocks(&hotplug, &ram, &free);
        let zone = hotplug.zone(NodeId::ZERO, Zone::Kernel);
        assert_eq!((zone.present, counts.online), (ram.len() as u64, ram.len() as u64));
        assert_eq!(take_everything(&frames, &free), free);
        // The kernel frees its reserved memory.
        for &frame in ram.intersection(&reserved) {
            frames.free_range(range(frame, 1)).unwrap();
        }
        let free: BTreeSet<u64> = ram.difference(&metadata).copied().collect();
        let actual = take_everything(&frames, &free);
        let bitmaps: BTreeSet<u64> =
            frames.metadata().flat_map(|metadata| numbers(metadata.frames)).collect();
        assert_eq!(actual.union(&bitmaps).copied().collect::<BTreeSet<_>>(), ram);
        if let Err(error) = hotplug.announce(range(PFN_LIMIT - PAGEBLOCK, PAGEBLOCK)) {
            let AnnounceError::NoMetadata(bytes) = error else { panic!("{error}") };
            assert!(
                frames.alloc_range(AllocRequest::frames(bytes.0.div_ceil(FRAME_SIZE))).is_err(),
                "the announcement failed although {bytes} are free"
            );
        }
    }

    fn check_error(&self, error: BootError, ram: &BTreeSet<u64>, usable: &BTreeSet<u64>) {
        match error {
            BootError::NoRam => assert!(ram.is_empty()),
            BootError::NoMemory => assert!(usable.is_empty() && !ram.is_empty()),
            BootError::NoMetadata(needed) => {
                let needed = needed.0 / FRAME_SIZE;
                let fits = usable.iter().any(|&start| {
                    (start..start + needed).all(|f| f < self.mapped_below && usable.contains(&f))
                });
                assert!(!fits, "boot failed although {needed} adjacent frames are usable");
                // The engine needs at most a bitmap frame for each section, and the words. In the
                // small geometry, a frame has the words of four sections.
                let sections: BTreeSet<u64> = ram.iter().map(|frame| frame / SECTION).collect();
                let span = (self.end() - ram.first().unwrap_or(&0) / SECTION * SECTION) / SECTION;
                assert!(needed <= 2 * sections.len() as u64 + span / 3 + 14, "{needed} frames");
            }
            error => panic!("{error}"),
        }
    }
}

fn check_regions(hotplug: &Hotplug<'_, Cpus>, ram: &BTreeSet<u64>) {
    let regions: Vec<PfnRange> = hotplug.regions().map(|(_, range)| range).collect();
    let mut clusters: Vec<(u64, u64)> = vec![];
    let blocks: BTreeSet<u64> = ram.iter().map(|frame| frame / PAGEBLOCK * PAGEBLOCK).collect();
    for block in blocks {
        match clusters.last_mut() {
            Some((_, end)) if block == *end => *end = block + PAGEBLOCK,
            _ => clusters.push((block, block + PAGEBLOCK)),
        }
    }
    let clusters = clusters.into_iter().map(|(start, end)| range(start, end - start));
    assert_eq!(regions, clusters.collect::<Vec<_>>());
}

/// Checks that all pageblocks of boot memory are online, and that their counts are right.
fn check_blocks(hotplug: &Hotplug<'_, Cpus>, ram: &BTreeSet<u64>, free: &BTreeSet<u64>) {
    for (_, region) in hotplug.regions() {
        for block in region.chunks(PAGEBLOCK) {
            let ram = ram.range(numbers(block)).count() as u64;
            let free = free.range(numbers(block)).count() as u64;
            let counts = hotplug.frames().counts_in(block);
            assert_eq!((counts.present, counts.online, counts.free), (ram, ram, free));
            assert_eq!(hotplug.state_at(block.start(), block.end()), (block, State::Online));
        }
    }
}

/// Allocates all frames one by one and frees them again. Returns the frames that were allocated or
/// became bitmap frames.
fn take_everything(frames: &Frames<Cpus>, expected: &BTreeSet<u64>) -> BTreeSet<u64> {
    let mut allocated = BTreeSet::new();
    while let Ok(frame) = frames.alloc_range(AllocRequest::frames(1)) {
        let frame = frame.start().number();
        assert!(expected.contains(&frame) && allocated.insert(frame), "{frame:#x} was not free");
    }
    for &frame in &allocated {
        frames.free_range(range(frame, 1)).unwrap();
    }
    frames.validated().unwrap();
    // A section keeps a bitmap frame after one of its pageblocks was divided for the first time.
    let bitmaps = frames.metadata().map(|metadata| metadata.frames.start().number());
    allocated.extend(bitmaps.filter(|frame| expected.contains(frame)));
    allocated
}

/// Makes ranges of bytes in the windows. They begin and end at multiples of a byte, a frame or a
/// pageblock.
fn ranges(count: std::ops::Range<usize>, longest: u64) -> impl Strategy<Value = Vec<BootRange>> {
    let unit = prop_oneof![Just(1), Just(FRAME_SIZE), Just(PAGEBLOCK * FRAME_SIZE)];
    let window = (0..3u64, 0..WINDOW_DISTANCES.len())
        .prop_map(|(number, step)| number * WINDOW_DISTANCES[step]);
    let one = (window, 0..WINDOW * FRAME_SIZE, 0..longest, unit.clone(), unit);
    let one = one.prop_map(|(window, start, len, start_unit, len_unit)| {
        let start = start / start_unit * start_unit;
        bytes(
            window * FRAME_SIZE + start,
            (len / len_unit * len_unit).min(WINDOW * FRAME_SIZE - start),
        )
    });
    prop::collection::vec(one, count)
}

fn maps() -> impl Strategy<Value = Map> {
    let below = prop_oneof![4 => Just(PFN_LIMIT), 1 => 0..2 * WINDOW];
    let parts = (ranges(0..8, WINDOW * FRAME_SIZE), ranges(0..10, 20 * FRAME_SIZE), below);
    parts.prop_map(|(ram, reserved, mapped_below)| Map { ram, reserved, mapped_below })
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: if cfg!(miri) { 3 } else if cfg!(hotmem_geometry = "small") { 400 } else { 24 },
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn every_map_makes_the_machine_that_it_describes(map in maps()) {
        map.check();
    }

    #[test]
    fn the_order_of_a_maps_ranges_does_not_matter(map in maps().prop_shuffle_ram()) {
        let (map, shuffled) = map;
        let memory = Memory::new(map.end().max(SECTION));
        let instances = [Frames::new(Cpus), Frames::new(Cpus)];
        let ordered_state = map.boot(&instances[0], &memory).map(|hotplug| visible_state(&hotplug));
        let memory = Memory::new(map.end().max(SECTION));
        let shuffled_state = shuffled.boot(&instances[1], &memory).map(|hotplug| visible_state(&hotplug));
        prop_assert_eq!(ordered_state.ok(), shuffled_state.ok());
    }
}

/// Returns the visible state of an instance.
fn visible_state(hotplug: &Hotplug<'_, Cpus>) -> (Vec<PfnRange>, Vec<Metadata>, Vec<Counts>) {
    let regions: Vec<PfnRange> = hotplug.regions().map(|(_, range)| range).collect();
    let blocks = regions.iter().flat_map(|region| region.chunks(PAGEBLOCK));
    let counts = blocks.map(|block| hotplug.frames().counts_in(block)).collect();
    (regions, hotplug.frames().metadata().collect(), counts)
}

trait ShuffleRam {
    fn prop_shuffle_ram(self) -> impl Strategy<Value = (Map, Map)>;
}

impl<S: Strategy<Value = Map>> ShuffleRam for S {
    fn prop_shuffle_ram(self) -> impl Strategy<Value = (Map, Map)> {
        self.prop_flat_map(|map| {
            let parts =
                (Just(map.ram.clone()).prop_shuffle(), Just(map.reserved.clone()).prop_shuffle());
            parts.prop_map(move |(ram, reserved)| {
                (map.clone(), Map { ram, reserved, mapped_below: map.mapped_below })
            })
        })
    }
}

fn map(ram: &[(u64, u64)], reserved: &[(u64, u64)]) -> Map {
    let ranges = |list: &[(u64, u64)]| {
        list.iter().map(|&(from, to)| bytes(from * FRAME_SIZE, (to - from) * FRAME_SIZE)).collect()
    };
    Map { ram: ranges(ram), reserved: ranges(reserved), mapped_below: PFN_LIMIT }
}

#[test]
fn the_smallest_machine_has_twelve_frames() {
    let boot_with = |ram_frames| {
        let frames = Frames::new(Cpus);
        let memory = Memory::new(SECTION);
        map(&[(5, 5 + ram_frames)], &[]).boot(&frames, &memory).map(|_| frames.counts().free)
    };
    let least = (1..100).find(|&frames| boot_with(frames).is_ok()).unwrap();
    assert!(least <= 12, "{least} frames");
    for frames in 1..least {
        assert!(matches!(boot_with(frames), Err(BootError::NoMetadata(_))), "{frames}");
    }
    for frames in least..25 {
        map(&[(5, 5 + frames)], &[]).check();
    }
}

#[test]
fn adjacent_ranges_of_ram_are_joined() {
    map(&[(3, PAGEBLOCK + 1), (PAGEBLOCK + 1, 2 * PAGEBLOCK), (PAGEBLOCK, SECTION)], &[]).check();
    // A frame that two ranges share is a whole frame of neither, so it is not used.
    let halves = Map {
        ram: vec![bytes(0, 20 * FRAME_SIZE + 2048), bytes(20 * FRAME_SIZE + 2048, 20 * FRAME_SIZE)],
        ..map(&[], &[])
    };
    assert!(!halves.ram().contains(&20));
    halves.check();
}

#[test]
fn a_frame_that_is_partly_reserved_is_reserved() {
    let partly_reserved = Map {
        ram: vec![bytes(0, SECTION * FRAME_SIZE)],
        reserved: vec![bytes(8191, 2), bytes(5 * FRAME_SIZE, 0), bytes(7 * FRAME_SIZE, 1)],
        mapped_below: PFN_LIMIT,
    };
    assert_eq!(partly_reserved.reserved(), BTreeSet::from([1, 2, 7]));
    partly_reserved.check();
}

#[test]
fn ram_in_any_number_of_clusters_is_booted() {
    let cluster = |i: u64| bytes(i * 272 * SECTION * FRAME_SIZE, PAGEBLOCK * FRAME_SIZE);
    let boot = |clusters: u64| {
        let frames = Frames::new(Cpus);
        let memory = Memory::new(8 * SECTION);
        let first = bytes(0, 8 * SECTION * FRAME_SIZE);
        let ram = (1..clusters).map(cluster).chain([first]).collect();
        let map = Map { ram, reserved: vec![], mapped_below: 8 * SECTION };
        map.boot(&frames, &memory).map(|hotplug| hotplug.regions().count())
    };
    for clusters in [1, 3, 100] {
        assert_eq!(boot(clusters as u64), Ok(clusters));
    }
}

/// Boots with the memory map of QEMU's q35 for a guest of 3 GiB, scaled to the geometry: low memory
/// with a hole for legacy devices, memory up to the PCI hole, and the remaining memory above it.
#[test]
fn the_memory_map_of_a_pc_is_booted() {
    let (low, hole, top) = (SECTION, 2 * SECTION, 3 * SECTION);
    map(
        &[(hole, top), (0, 9), (16, low - 3)],
        &[(0, 1), (9, 16), (20, 40), (low - 10, low + 5), (hole + PAGEBLOCK, hole + PAGEBLOCK + 3)],
    )
    .check();
}

#[test]
fn ram_up_to_the_limit_of_addresses_is_booted() {
    let frames = Frames::new(Cpus);
    let memory = Memory::new(SECTION);
    let top = bytes((PFN_LIMIT - PAGEBLOCK) * FRAME_SIZE, PAGEBLOCK * FRAME_SIZE);
    let ram = vec![top, bytes(0, SECTION * FRAME_SIZE)];
    let map = Map { ram, reserved: vec![], mapped_below: SECTION };
    let hotplug = map.boot(&frames, &memory).unwrap();
    let last_block = range(PFN_LIMIT - PAGEBLOCK, PAGEBLOCK);
    assert_eq!(hotplug.regions().last().unwrap().1, last_block);
    assert_eq!(
        frames.alloc_range(AllocRequest::frames(PAGEBLOCK).at(last_block.start())),
        Ok(last_block)
    );
    assert_eq!(frames.free_range(last_block), Ok(()));
    frames.validated().unwrap();
}
