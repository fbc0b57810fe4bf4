//! Tests the size of metadata: none for announced memory, little for added memory. The engine does
//! not access the added memory.

use hotmem::*;
use hotmem_testkit::RawRanges as _;
use hotmem_testkit::Validated as _;
use hotmem_testkit::{Cpus, DISTANT_PFN, Memory, PAGEBLOCK, SECTION, numbers, pfn, range};

/// 64 GiB, unless the engine is built with a small geometry.
const PLUGGED_FRAMES: u64 = 512 * SECTION;

/// Runs `test` on an instance of which only boot memory is backed by real memory. An access to
/// other memory ends the test program with a fault.
fn with_boot_memory_only(test: impl FnOnce(&Frames<Cpus>, &mut Hotplug<'_, Cpus>, &Memory)) {
    let memory = Memory::new(8 * SECTION);
    let frames = Frames::new(Cpus);
    let ram = [BootRange { start: 0, len: range(0, 8 * SECTION).bytes() }];
    let mut hotplug = hotmem_testkit::start(&frames, memory.direct_map(), &ram).unwrap();
    test(&frames, &mut hotplug, &memory);
}

/// Returns all 64-bit words of the engine's metadata.
fn words(frames: &Frames<Cpus>, memory: &Memory) -> Vec<u64> {
    let metadata = frames.metadata().flat_map(|metadata| numbers(metadata.frames));
    metadata.flat_map(|frame| memory.words(frame)).collect()
}

#[test]
fn onlining_writes_a_hundred_thousandth_of_the_memory_at_most() {
    with_boot_memory_only(|frames, hotplug, memory| {
        let plugged = range(DISTANT_PFN, PLUGGED_FRAMES);
        hotplug.announce(plugged).unwrap();
        // The words that `prepare_add` has made stay allocated.
        drop(hotplug.prepare_add(plugged).unwrap());
        let before = words(frames, memory);
        let counts = frames.counts();
        hotplug.add(plugged).unwrap();
        hotplug.online(plugged, OnlineType::Movable, &mut NoHooks).unwrap();
        assert_eq!(frames.counts().online, counts.online + PLUGGED_FRAMES);
        let after = words(frames, memory);
        assert_eq!(before.len(), after.len());
        let changed = before.iter().zip(&after).filter(|(before, after)| before != after).count();
        let written = changed as u64 * 8;
        // The engine writes a fixed number of bytes for each section. In the small geometry, a
        // section has a two-thousandth of the frames.
        let sections = PLUGGED_FRAMES / SECTION;
        assert!(written > 0 && written <= sections * 48 + 1024, "{written} bytes");
        if SECTION == 1 << 15 {
            let limit = plugged.bytes().0 / 100_000;
            assert!(written <= limit / 10, "{written} bytes, of {limit} that would be allowed");
        }
        hotplug.offline_all(plugged);
        hotplug.remove(plugged).unwrap();
        assert_eq!(Counts { announced: counts.announced, ..frames.counts() }, counts);
    });
}

trait OfflineAll {
    fn offline_all(&mut self, range: PfnRange);
}

impl OfflineAll for Hotplug<'_, Cpus> {
    fn offline_all(&mut self, range: PfnRange) {
        let mut request = self.offline(range).unwrap();
        let done = request.poll(self, &mut NoHooks, Budget::UNLIMITED);
        assert_eq!(done, Progress::Ready(range));
    }
}

/// A chunk is the unit in which words are made. It describes this many sections.
const SECTIONS_PER_CHUNK: u64 = if cfg!(hotmem_geometry = "small") { 4 } else { 64 };
/// The number of frames that the words of a chunk take.
const FRAMES_PER_CHUNK: u64 = if cfg!(hotmem_geometry = "small") { 1 } else { 3 };

#[test]
fn adding_takes_12_kib_for_each_8_gib() {
    with_boot_memory_only(|frames, hotplug, _| {
        let mut start = DISTANT_PFN;
        for sections in [1, 2, 31, 32, 33, 64, 65, 128] {
            let before = frames.counts();
            let target = range(start, sections * SECTION);
            let region = hotplug.announce(target).unwrap();
            assert_eq!((frames.counts().words, frames.counts().free), (before.words, before.free));
            hotplug.add(target).unwrap();
            let added = frames.counts();
            let words = added.words - before.words;
            // If the words took only a part of a pageblock, the pageblock needs bitmaps, which take a
            // few frames more.
            let allocated = before.free - added.free;
            assert_eq!(allocated, words + added.bitmaps - before.bitmaps);
            // At most 12 KiB for each chunk, 4 KiB for every 16 chunks, and 8 KiB for every 512.
            let chunks = sections.div_ceil(SECTIONS_PER_CHUNK);
            let max_frames = chunks * FRAMES_PER_CHUNK + chunks.div_ceil(16) + 1 + 2;
            assert!(words <= max_frames, "{words} frames for {sections} sections");
            // The words stay, and the next memory at the same place uses them.
            let before = frames.counts();
            hotplug.remove(target).unwrap();
            hotplug.withdraw(region).unwrap();
            let again = hotplug.announce(target).unwrap();
            hotplug.add(target).unwrap();
            assert_eq!(frames.counts(), before);
            hotplug.remove(target).unwrap();
            hotplug.withdraw(again).unwrap();
            start += sections.next_multiple_of(SECTIONS_PER_CHUNK) * SECTION;
        }
    });
}

#[test]
fn words_are_used_again() {
    with_boot_memory_only(|frames, hotplug, _| {
        let mut add_and_remove = |target| {
            let region = hotplug.announce(target).unwrap();
            hotplug.add(target).unwrap();
            hotplug.remove(target).unwrap();
            hotplug.withdraw(region).unwrap();
        };
        add_and_remove(range(DISTANT_PFN, 10 * SECTION));
        let free = frames.counts().free;
        for i in 0..200 {
            add_and_remove(range(DISTANT_PFN, (i % 10 + 1) * SECTION));
        }
        assert_eq!(frames.counts().free, free);
    });
}

/// Boots a machine of 32 MiB, fragments its kernel memory into runs of 64 KiB, and announces a
/// device of a size up to the address limit.
#[cfg(not(hotmem_geometry = "small"))]
#[test]
fn a_small_machine_can_announce_all_memory_up_to_the_address_limit() {
    let memory = Memory::new(16 * PAGEBLOCK);
    for bits in [46, 52] {
        let frames = Frames::new(Cpus);
        let ram = [BootRange { start: 0, len: Bytes::mib(32) }];
        let mut hotplug = hotmem_testkit::start(&frames, memory.direct_map(), &ram).unwrap();
        let mut allocated = vec![];
        while let Ok(run) = frames.alloc_range(AllocRequest::frames(16)) {
            allocated.push(run);
        }
        allocated.into_iter().step_by(2).for_each(|run| frames.free_range(run).unwrap());
        let before = frames.counts().words;
        let end =
            if bits == 52 { hotmem_testkit::PFN_LIMIT } else { DISTANT_PFN + (1 << (bits - 12)) };
        let device = range(DISTANT_PFN, end - DISTANT_PFN);
        hotplug.announce(device).unwrap();
        let announced = frames.counts().words - before;
        assert!(announced <= 64 / 4, "{announced} frames to announce {device}");

        let gib = Bytes::gib(1).frames();
        for (first, max_frames) in [(range(DISTANT_PFN, gib), 256), (range(end - gib, gib), 256)] {
            let before = frames.counts().words;
            hotplug.add(first).unwrap();
            hotplug.online(first, OnlineType::Movable, &mut NoHooks).unwrap();
            let allocated = frames.counts().words - before;
            assert!(allocated <= max_frames / 4, "{allocated} frames for the first GiB at {first}");
        }
        let before = frames.counts().words;
        let tib = range(DISTANT_PFN + (1 << 30), Bytes::gib(1024).frames());
        hotplug.add(tib).unwrap();
        let allocated = frames.counts().words - before;
        assert!(allocated <= 1638 / 4, "{allocated} frames for a TiB");

        // An addition that needs too much memory takes none.
        let before = (frames.counts().words, frames.counts().free);
        let remaining = PfnRange::new(tib.end(), pfn(end - gib)).unwrap();
        assert!(matches!(hotplug.add(remaining), Err(AddError::NoMetadata(_))));
        assert_eq!((frames.counts().words, frames.counts().free), before);
        assert_eq!(
            hotplug.state_at(remaining.start(), remaining.end()),
            (remaining, State::Absent)
        );
        frames.validated().unwrap();
    }
}

#[test]
fn metadata_of_withdrawn_memory_stays_and_is_listed() {
    with_boot_memory_only(|frames, hotplug, _| {
        let memory = range(DISTANT_PFN, SECTION);
        let add_and_remove = |hotplug: &mut Hotplug<'_, Cpus>| {
            let region = hotplug.announce(memory).unwrap();
            hotplug.add(memory).unwrap();
            hotplug.online(memory, OnlineType::Movable, &mut NoHooks).unwrap();
            // This divides a pageblock, which then has a bitmap.
            frames
                .free_range(frames.alloc_range(AllocRequest::frames(1).movable()).unwrap())
                .unwrap();
            hotplug.offline_all(memory);
            hotplug.remove(memory).unwrap();
            region
        };
        let sizes = || (frames.counts().words, frames.counts().bitmaps, frames.counts().free);
        let region = add_and_remove(hotplug);
        let before = sizes();
        let listed: Vec<_> = frames.metadata().collect();
        assert!(listed.iter().any(|metadata| metadata.describes.overlaps(memory)));
        hotplug.withdraw(region).unwrap();
        assert_eq!((sizes(), frames.metadata().collect()), (before, listed));
        let region = add_and_remove(hotplug);
        hotplug.withdraw(region).unwrap();
        assert_eq!(sizes(), before, "the metadata is used again");
        frames.validated().unwrap();
    });
}

#[test]
fn memory_can_be_added_to_a_machine_without_a_free_frame() {
    let memory = Memory::new(4 * SECTION);
    let frames = Frames::new(Cpus);
    let ram = [BootRange { start: 0, len: range(0, SECTION).bytes() }];
    let mut hotplug = hotmem_testkit::start(&frames, memory.direct_map(), &ram).unwrap();
    let hot = range(SECTION, 3 * SECTION);
    hotplug.announce(hot).unwrap();
    while frames.alloc_range(AllocRequest::frames(1)).is_ok() {}
    assert_eq!(frames.counts().free, 0);
    hotplug.add(hot).unwrap();
    hotplug.online(hot, OnlineType::Kernel, &mut NoHooks).unwrap();
    assert_eq!(frames.counts().free, hot.frames());
    // Whole pageblocks and sections need no bitmaps.
    let allocated_range = frames.alloc_range(AllocRequest::frames(2 * SECTION)).unwrap();
    assert_eq!(frames.counts().free, SECTION);
    // The first pageblock that is divided holds the bitmap frame.
    let one = frames.alloc_range(AllocRequest::frames(1)).unwrap();
    assert_eq!(frames.counts().free, SECTION - 2);
    frames.free_range(range(allocated_range.start().number(), 3)).unwrap();
    assert_eq!(frames.counts().free, SECTION - 2 + 3 - 1);
    frames.validated().unwrap();
    frames.free_range(one).unwrap();
    frames.free_range(range(allocated_range.start().number() + 3, 2 * SECTION - 3)).unwrap();
    // A section's own bitmap frame does not prevent its removal.
    hotplug.offline_all(hot);
    hotplug.remove(hot).unwrap();
    frames.validated().unwrap();
    assert_eq!(frames.metadata().filter(|metadata| hot.overlaps(metadata.frames)).count(), 0);
}

#[test]
fn a_section_that_holds_its_own_bitmaps_can_be_removed_only_as_a_whole() {
    let memory = Memory::new(2 * SECTION);
    let frames = Frames::new(Cpus);
    let ram = [BootRange { start: 0, len: range(0, SECTION).bytes() }];
    let mut hotplug = hotmem_testkit::start(&frames, memory.direct_map(), &ram).unwrap();
    let hot = range(SECTION, SECTION);
    hotplug.announce(hot).unwrap();
    while frames.alloc_range(AllocRequest::frames(1)).is_ok() {}
    hotplug.add(hot).unwrap();
    hotplug.online(hot, OnlineType::Movable, &mut NoHooks).unwrap();
    frames.free_range(frames.alloc_range(AllocRequest::frames(1).movable()).unwrap()).unwrap();
    let bitmaps = frames.metadata().map(|metadata| metadata.frames);
    let bitmaps = { bitmaps }
        .find(|&bitmaps| hot.covers(bitmaps))
        .expect("the section holds its self-hosted bitmaps");
    let bitmap_block = range(bitmaps.start().align_down(PAGEBLOCK).number(), PAGEBLOCK);
    let mut part = hotplug.offline(bitmap_block).unwrap();
    let progress = part.poll(&mut hotplug, &mut NoHooks, Budget::UNLIMITED);
    assert_eq!(
        progress,
        Progress::Pending(Blocker { range: bitmaps, kind: BlockerKind::Metadata })
    );
    part.cancel(&mut hotplug, &mut NoHooks);
    for block in hot.chunks(PAGEBLOCK).filter(|&block| block != bitmap_block).chain([bitmap_block])
    {
        hotplug.offline_all(block);
    }
    assert_eq!(hotplug.state_at(hot.start(), pfn(2 * SECTION)), (hot, State::Offline));
    frames.validated().unwrap();
}
