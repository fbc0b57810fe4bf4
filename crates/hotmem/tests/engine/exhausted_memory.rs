//! Tests adding memory when the kernel has used up all memory: the engine takes words from the word
//! reserve, and refills the reserve when kernel memory comes online.

use hotmem::*;
use hotmem::{RangeError, RangeErrorKind};
use hotmem_testkit::{Cpus, Memory, PAGEBLOCK, RawRanges as _, SECTION, Snapshot, Validated as _};
use hotmem_testkit::{make_words, pfn, range};

const IS_SMALL_GEOMETRY: bool = cfg!(hotmem_geometry = "small");
/// The numbers of frames of boot memory (32 MiB), of an addition (1 GiB), and of the memory that
/// one chunk describes. The small geometry has fewer.
const BOOT_FRAMES: u64 = if IS_SMALL_GEOMETRY { 2 * SECTION } else { 16 * PAGEBLOCK };
const PLUGGED_FRAMES: u64 = if IS_SMALL_GEOMETRY { 2 * SECTION } else { 8 * SECTION };
const CHUNK_FRAMES: u64 = if IS_SMALL_GEOMETRY { 4 * SECTION } else { 64 * SECTION };
/// The number of additions in a test that uses the plugged memory: only one in the real geometry,
/// because all of the memory must exist.
const ADDITIONS: u64 = if IS_SMALL_GEOMETRY { 64 } else { 1 };

/// An instance whose kernel memory is used up.
struct Instance<'f> {
    frames: &'f Frames<Cpus>,
    hotplug: Hotplug<'f, Cpus>,
    allocations: Vec<PfnRange>,
}

/// Runs `test` on an instance whose only free memory is movable.
fn without_kernel_memory(chunks: u64, test: impl FnOnce(Instance<'_>)) {
    let memory = Memory::new(CHUNK_FRAMES * chunks + PLUGGED_FRAMES);
    let frames = Frames::new(Cpus);
    let mut hotplug = hotmem_testkit::boot(&frames, &memory, BOOT_FRAMES);
    let movable = range(2 * SECTION, SECTION);
    hotmem_testkit::plug(&mut hotplug, movable);
    let mut instance = Instance { frames: &frames, hotplug, allocations: vec![] };
    instance.use_up();
    assert_eq!(frames.counts().free, movable.frames());
    test(instance);
    assert_eq!(frames.counts_in(movable).free, movable.frames());
    frames.validated().unwrap();
}

/// Returns the first frames of the memory that a chunk describes.
fn first_frames_of_chunk(chunk: u64) -> PfnRange {
    range(chunk * CHUNK_FRAMES, PLUGGED_FRAMES)
}

impl Instance<'_> {
    /// Allocates all kernel memory.
    fn use_up(&mut self) {
        for len in [SECTION, PAGEBLOCK, 1] {
            while let Ok(allocated) = self.frames.alloc_range(AllocRequest::frames(len)) {
                self.allocations.push(allocated);
            }
        }
    }

    /// Announces `memory` if it is unknown, adds it, and puts it online.
    fn plug(&mut self, memory: PfnRange, kind: OnlineType) -> Result<(), AddError> {
        if self.hotplug.state_at(memory.start(), memory.end()).1 == State::Unknown {
            self.hotplug.announce(memory).unwrap();
        }
        self.hotplug.add(memory)?;
        self.hotplug.online(memory, kind, &mut NoHooks).unwrap();
        self.frames.validated().unwrap();
        Ok(())
    }

    fn snapshot(&self) -> (Snapshot, Counts) {
        (Snapshot::of(&self.hotplug, 3 * SECTION, &self.allocations), self.frames.counts())
    }

    /// Returns the number of frames of metadata.
    fn count_metadata(&self) -> u64 {
        self.frames.metadata().map(|metadata| metadata.frames.frames()).sum()
    }
}

#[test]
fn kernel_memory_can_be_added_to_one_chunk_after_another() {
    without_kernel_memory(ADDITIONS, |mut instance| {
        for chunk in 1..=ADDITIONS {
            let before = instance.frames.counts();
            instance.plug(first_frames_of_chunk(chunk), OnlineType::Kernel).unwrap();
            let after = instance.frames.counts();
            let (new_free, new_words) = (after.free - before.free, after.words - before.words);
            // Of the added memory, one more frame holds bitmaps.
            assert_eq!(new_free + new_words + 1, PLUGGED_FRAMES, "chunk {chunk}");
            instance.use_up();
            assert_eq!(instance.frames.counts().free, before.free);
        }
    });
}

#[test]
fn movable_memory_uses_up_the_word_reserve_and_then_additions_are_refused() {
    without_kernel_memory(1, |mut instance| {
        let far = hotmem_testkit::PFN_LIMIT / 2;
        let before_words = instance.count_metadata();
        // This memory is so far from all other memory that it needs a new piece of each kind.
        let first = range(far, PLUGGED_FRAMES);
        instance.hotplug.announce(first).unwrap();
        make_words(&mut instance.hotplug, first);
        assert_eq!(instance.count_metadata(), before_words, "the words came from the word reserve");
        let second = range(far + far / 2, PLUGGED_FRAMES);
        instance.hotplug.announce(second).unwrap();
        let before = instance.snapshot();
        let refused = instance.hotplug.add(second).unwrap_err();
        assert!(matches!(refused, AddError::NoMetadata(_)), "{refused}");
        assert!(instance.snapshot() == before);
        // Kernel memory that comes online refills the reserve.
        let new_kernel_memory = range(2 * SECTION + SECTION, PAGEBLOCK);
        instance.plug(new_kernel_memory, OnlineType::Kernel).unwrap();
        instance.use_up();
        make_words(&mut instance.hotplug, second);
        // The next addition refills the reserve as well, if the kernel has freed memory.
        let [third, last_region] =
            [far - CHUNK_FRAMES, far / 2].map(|start| range(start, PLUGGED_FRAMES));
        instance.hotplug.announce(third).unwrap();
        instance.hotplug.announce(last_region).unwrap();
        let before = instance.snapshot();
        assert!(matches!(instance.hotplug.add(third), Err(AddError::NoMetadata(_))));
        assert!(instance.snapshot() == before);
        let block =
            instance.allocations.iter().position(|used| used.frames() == PAGEBLOCK).unwrap();
        let block = instance.allocations.swap_remove(block);
        instance.frames.free_range(block).unwrap();
        make_words(&mut instance.hotplug, third);
        instance.use_up();
        make_words(&mut instance.hotplug, last_region);
    });
}

#[test]
fn a_refusal_divides_no_pageblock() {
    without_kernel_memory(1, |mut instance| {
        let block =
            instance.allocations.iter().position(|used| used.frames() == PAGEBLOCK).unwrap();
        let block = instance.allocations.swap_remove(block);
        instance.frames.free_range(block).unwrap();
        assert_eq!(instance.frames.counts().free_whole, SECTION + PAGEBLOCK);
        // The words take 12 KiB for each chunk, more than the free pageblock.
        let far = range(hotmem_testkit::PFN_LIMIT / 2, 200 * CHUNK_FRAMES);
        instance.hotplug.announce(far).unwrap();
        let before = instance.snapshot();
        assert!(matches!(instance.hotplug.add(far), Err(AddError::NoMetadata(_))));
        assert!(instance.snapshot() == before);
        assert_eq!(instance.frames.counts().free_whole, SECTION + PAGEBLOCK);
    });
}

#[test]
fn the_word_reserve_is_metadata() {
    let memory = Memory::new(SECTION);
    let frames = Frames::new(Cpus);
    let mut hotplug = hotmem_testkit::boot(&frames, &memory, SECTION);
    let reserve: Vec<PfnRange> = { frames.metadata() }
        .filter(|metadata| metadata.describes.is_empty())
        .map(|metadata| metadata.frames)
        .collect();
    assert!(reserve.iter().map(|run| run.frames()).sum::<u64>() >= 7, "{reserve:?}");
    for &run in &reserve {
        assert_eq!(
            hotplug.poison(run.start()),
            Err(RangeError { range: run, kind: RangeErrorKind::Metadata })
        );
        let at = AllocRequest::frames(1).at(run.start());
        assert!(matches!(frames.alloc_range(at), Err(AllocError::NotFree(_))));
    }
    // The reserve moves to other memory, but words do not.
    for run in reserve {
        let block = run.start().align_down(PAGEBLOCK);
        let mut offline = match hotplug.offline(range(block.number(), PAGEBLOCK)) {
            Ok(offline) => offline,
            Err(error) => panic!("{error}"),
        };
        let progress = offline.poll(&mut hotplug, &mut NoHooks, Budget::UNLIMITED);
        assert!(
            matches!(progress, Progress::Pending(Blocker { kind: BlockerKind::Metadata, .. })),
            "{progress:?}"
        );
        offline.cancel(&mut hotplug, &mut NoHooks);
    }
    assert_eq!(hotplug.state_at(Pfn::ZERO, pfn(SECTION)).1, State::Online);
    frames.validated().unwrap();
}
