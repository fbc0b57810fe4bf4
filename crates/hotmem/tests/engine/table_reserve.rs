//! Tests adding memory that needs page tables when the kernel has used up all memory: the engine
//! takes frames for tables from the table reserve, and refills the reserve.

use crate::tables::{TABLE_SPAN, TableMapping};
use hotmem::*;
use hotmem_testkit::{Cpus, Memory, PAGEBLOCK, RawRanges as _, SECTION, Snapshot, Validated as _};
use hotmem_testkit::{make_words, range, start};

const IS_SMALL_GEOMETRY: bool = cfg!(hotmem_geometry = "small");
/// The number of frames in the table reserve.
const RESERVE: u64 = if IS_SMALL_GEOMETRY { 4 } else { TABLE_RESERVE };
/// The number of frames in the largest table reserve.
const MAX_RESERVE: u64 = if IS_SMALL_GEOMETRY { 4 } else { 64 };
/// The memory of a device: it needs more tables than the reserve has.
const REGION: PfnRange =
    PfnRange::with_len(Pfn::new(SECTION).unwrap(), (RESERVE + 4) * TABLE_SPAN).unwrap();

/// An instance whose kernel memory is used up.
struct Instance<'f> {
    frames: &'f Frames<Cpus>,
    hotplug: Hotplug<'f, Cpus, TableMapping>,
    allocations: Vec<PfnRange>,
}

fn without_kernel_memory(test: impl FnOnce(Instance<'_>)) {
    let memory = Memory::new(REGION.end().number());
    let frames = Frames::new(Cpus);
    let ram = [BootRange { start: 0, len: range(0, SECTION).bytes() }];
    let mapping = TableMapping::new(memory.mapping(), RESERVE);
    let mut hotplug = start(&frames, mapping, &ram).unwrap();
    hotplug.announce(REGION).unwrap();
    make_words(&mut hotplug, REGION);
    let mut instance = Instance { frames: &frames, hotplug, allocations: vec![] };
    assert_eq!(instance.count_reserved(), RESERVE);
    instance.use_up();
    test(instance);
    frames.validated().unwrap();
}

impl Instance<'_> {
    /// Allocates all kernel memory, the last of it in single frames.
    fn use_up(&mut self) {
        for len in [PAGEBLOCK, 1] {
            while let Ok(allocated) = self.frames.alloc_range(AllocRequest::frames(len)) {
                self.allocations.push(allocated);
            }
        }
    }

    /// Returns the number of single frames of metadata that describe nothing: the table reserve,
    /// and a constant number of others.
    fn count_reserved(&self) -> u64 {
        let metadata = self.frames.metadata().filter(|metadata| metadata.describes.is_empty());
        let frames: u64 = metadata.map(|metadata| metadata.frames.frames()).sum();
        frames - count_others()
    }

    fn snapshot(&self) -> (Snapshot, Counts) {
        (
            Snapshot::of(&self.hotplug, REGION.end().number(), &self.allocations),
            self.frames.counts(),
        )
    }
}

/// Returns the number of frames of metadata that describe nothing in an instance without a table
/// reserve.
fn count_others() -> u64 {
    let memory = Memory::new(REGION.end().number());
    let frames = Frames::new(Cpus);
    let ram = [BootRange { start: 0, len: range(0, SECTION).bytes() }];
    let mut hotplug = start(&frames, TableMapping::new(memory.mapping(), 0), &ram).unwrap();
    hotplug.announce(REGION).unwrap();
    make_words(&mut hotplug, REGION);
    let metadata = frames.metadata().filter(|metadata| metadata.describes.is_empty());
    metadata.map(|metadata| metadata.frames.frames()).sum()
}

#[test]
fn kernel_memory_is_added_again_and_again_without_a_free_frame() {
    without_kernel_memory(|mut instance| {
        for section in REGION.chunks(SECTION) {
            instance.hotplug.add(section).unwrap();
            instance.hotplug.online(section, OnlineType::Kernel, &mut NoHooks).unwrap();
            assert_eq!(instance.count_reserved(), RESERVE, "the reserve is filled again");
            instance.use_up();
        }
        assert_eq!(instance.hotplug.mapping().tables(), RESERVE + 4);
    });
}

#[test]
fn as_much_is_added_at_once_as_the_reserve_has_tables() {
    without_kernel_memory(|mut instance| {
        let before = instance.snapshot();
        let refused = instance.hotplug.add(REGION).unwrap_err();
        let error = AllocError::OutOfMemory;
        assert_eq!(refused, AddError::NoTables { frames: RESERVE + 4, error });
        assert!(instance.snapshot() == before);
        let most = REGION.split_at(Pfn::new(SECTION + RESERVE * TABLE_SPAN).unwrap()).0;
        instance.hotplug.add(most).unwrap();
        assert_eq!(instance.count_reserved(), 0);
        let next = range(most.end().number(), PAGEBLOCK);
        assert!(matches!(instance.hotplug.add(next), Err(AddError::NoTables { frames: 1, .. })));
        // The removal gives the tables back to the reserve.
        instance.hotplug.remove(most).unwrap();
        assert_eq!(instance.count_reserved(), RESERVE);
        instance.hotplug.add(next).unwrap();
    });
}

#[test]
fn a_dropped_addition_gives_its_frames_back_to_the_reserve() {
    without_kernel_memory(|mut instance| {
        let section = REGION.chunks(SECTION).next().unwrap();
        drop(instance.hotplug.prepare_add(section).unwrap());
        let before = instance.snapshot();
        for _ in 0..3 * RESERVE {
            drop(instance.hotplug.prepare_add(section).unwrap());
            assert!(instance.snapshot() == before);
        }
        instance.hotplug.add(section).unwrap();
    });
}

#[test]
fn an_addition_refills_the_reserve_from_free_memory() {
    without_kernel_memory(|mut instance| {
        let mut sections = REGION.chunks(SECTION);
        instance.hotplug.add(sections.next().unwrap()).unwrap();
        assert_eq!(instance.count_reserved(), RESERVE - 1);
        let freed = instance.allocations.pop().unwrap();
        instance.frames.free_range(freed).unwrap();
        // The table of the next addition takes the free frame, and nothing is left for the reserve.
        instance.hotplug.add(sections.next().unwrap()).unwrap();
        assert_eq!(instance.count_reserved(), RESERVE - 1);
        for _ in 0..2 {
            let freed = instance.allocations.pop().unwrap();
            instance.frames.free_range(freed).unwrap();
        }
        instance.hotplug.add(sections.next().unwrap()).unwrap();
        assert_eq!(instance.count_reserved(), RESERVE);
    });
}

/// The tables of an addition need not be contiguous.
#[test]
fn tables_come_from_single_free_frames() {
    without_kernel_memory(|mut instance| {
        let single = { instance.allocations.iter() }.filter(|used| used.frames() == 1);
        let scattered: Vec<PfnRange> = single.step_by(2).copied().take(4).collect();
        assert_eq!(scattered.len(), 4);
        instance.allocations.retain(|used| !scattered.contains(used));
        for frame in &scattered {
            instance.frames.free_range(*frame).unwrap();
        }
        let before = instance.snapshot();
        drop(instance.hotplug.prepare_add(REGION).unwrap());
        assert_eq!(instance.snapshot().1, before.1);
        instance.hotplug.add(REGION).unwrap();
        assert_eq!((instance.frames.counts().free, instance.count_reserved()), (0, 0));
    });
}

#[test]
fn the_table_reserve_is_metadata() {
    let memory = Memory::new(SECTION);
    let frames = Frames::new(Cpus);
    let ram = [BootRange { start: 0, len: range(0, SECTION).bytes() }];
    let words = [0, RESERVE].map(|reserve| {
        let frames = Frames::new(Cpus);
        start(&frames, TableMapping::new(memory.mapping(), reserve), &ram).unwrap();
        frames.counts().words
    });
    assert_eq!(words[1] - words[0], RESERVE, "the reserve is counted");
    let too_large = TableMapping::new(memory.mapping(), u64::MAX);
    let mut hotplug = start(&frames, too_large, &ram).unwrap();
    assert_eq!(frames.counts().words - words[0], MAX_RESERVE);
    for metadata in frames.metadata().filter(|metadata| metadata.describes.is_empty()) {
        let refused = hotplug.poison(metadata.frames.start()).unwrap_err();
        assert_eq!(refused.kind, RangeErrorKind::Metadata);
    }
}

/// Memory that came when no other memory was free holds the reserves. It can be removed as soon as
/// there is other free memory, to which the reserves move.
#[test]
fn the_reserves_move_out_of_memory_that_is_removed() {
    without_kernel_memory(|mut instance| {
        let first = REGION.chunks(SECTION).next().unwrap();
        instance.hotplug.add(first).unwrap();
        instance.hotplug.online(first, OnlineType::Kernel, &mut NoHooks).unwrap();
        let in_first = |instance: &Instance<'_>| {
            let reserves =
                instance.frames.metadata().filter(|metadata| metadata.describes.is_empty());
            reserves.filter(|metadata| first.covers(metadata.frames)).count()
        };
        assert_ne!(in_first(&instance), 0, "the table of this memory came from the reserve");
        let mut shrink = Shrink::new(first);
        let mut removed = 0;
        let progress = loop {
            match shrink.poll(&mut instance.hotplug, &mut NoHooks, Budget::UNLIMITED) {
                Progress::Ready(removal) => {
                    removed += removal.range().frames();
                    instance.hotplug.abandon_remove(removal, &mut NoHooks);
                }
                progress => break progress,
            }
        };
        let Progress::Pending(blocker) = progress else { panic!("{progress:?}") };
        assert!(matches!(blocker.kind, BlockerKind::NotEnoughFree { .. }), "{blocker}");
        assert_eq!(removed, first.frames() - PAGEBLOCK, "only the reserves are in the way");
        let block =
            instance.allocations.iter().position(|used| used.frames() == PAGEBLOCK).unwrap();
        let block = instance.allocations.swap_remove(block);
        instance.frames.free_range(block).unwrap();
        let mut shrink = Shrink::new(first);
        match shrink.poll(&mut instance.hotplug, &mut NoHooks, Budget::UNLIMITED) {
            Progress::Ready(removal) => {
                assert_eq!(removal.range(), first);
                instance.hotplug.commit_remove(removal);
            }
            progress => panic!("{progress:?}"),
        }
        assert_eq!((in_first(&instance), instance.count_reserved()), (0, RESERVE));
    });
}

/// The bitmaps of a section that holds the reserves can go only after the reserves.
#[test]
fn reserves_and_bitmaps_leave_isolated_memory_at_one_poll() {
    without_kernel_memory(|mut instance| {
        let first = REGION.chunks(SECTION).next().unwrap();
        instance.hotplug.add(first).unwrap();
        instance.hotplug.online(first, OnlineType::Kernel, &mut NoHooks).unwrap();
        let in_first = |described: fn(PfnRange) -> bool| {
            let metadata =
                instance.frames.metadata().filter(|metadata| first.covers(metadata.frames));
            metadata.filter(|metadata| described(metadata.describes)).count()
        };
        assert_ne!(in_first(|described| described.is_empty()), 0, "the section holds reserves");
        assert_ne!(in_first(|described| !described.is_empty()), 0, "and its own bitmaps");
        // As long as this pageblock, the highest, is in use, nothing looks at those below.
        let used = range(first.end().number() - PAGEBLOCK, PAGEBLOCK);
        instance.frames.alloc_range(AllocRequest::frames(PAGEBLOCK).at(used.start())).unwrap();
        let whole = { &instance.allocations }.iter().filter(|used| used.frames() == PAGEBLOCK);
        for freed in whole.take(2) {
            instance.frames.free_range(*freed).unwrap();
        }
        let mut offline = instance.hotplug.offline(first).unwrap();
        let mut poll = || offline.poll(&mut instance.hotplug, &mut NoHooks, Budget::UNLIMITED);
        let Progress::Pending(blocker) = poll() else { panic!("{used} is in use") };
        assert_eq!(blocker.range, used, "{blocker}");
        instance.frames.free_range(used).unwrap();
        assert_eq!(poll(), Progress::Ready(first));
    });
}
