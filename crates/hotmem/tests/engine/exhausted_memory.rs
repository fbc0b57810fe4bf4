//! Tests adding memory when the kernel has used up all memory: the engine takes words from the word
//! reserve, and refills the reserve when kernel memory comes online.

use hotmem::*;
use hotmem::{RangeError, RangeErrorKind};
use hotmem_testkit::{Cpus, Memory, PAGEBLOCK, Raw as _, SECTION, Snapshot, Validated as _};
use hotmem_testkit::{make_words, pfn, range};

const IS_SMALL_GEOMETRY: bool = cfg!(hotmem_geometry = "small");
/// The numbers of frames of boot memory (32 MiB), of an addition (1 GiB), and of the memory that
/// one chunk describes. The small geometry has fewer.
const BOOT: u64 = if IS_SMALL_GEOMETRY { 2 * SECTION } else { 16 * PAGEBLOCK };
const PLUGGED: u64 = if IS_SMALL_GEOMETRY { 2 * SECTION } else { 8 * SECTION };
const CHUNK: u64 = if IS_SMALL_GEOMETRY { 4 * SECTION } else { 64 * SECTION };
/// The number of additions in a test that uses the plugged memory: only one in the real geometry,
/// because all of the memory must exist.
const ROUNDS: u64 = if IS_SMALL_GEOMETRY { 64 } else { 1 };

/// A machine whose kernel memory is used up.
struct Machine<'f> {
    frames: &'f Frames<Cpus>,
    hotplug: Hotplug<'f, Cpus>,
    allocations: Vec<PfnRange>,
}

/// Runs `test` on a machine whose only free memory is movable.
fn without_kernel_memory(chunks: u64, test: impl FnOnce(Machine<'_>)) {
    let memory = Memory::new(CHUNK * chunks + PLUGGED);
    let frames = Frames::new(Cpus);
    let mut hotplug = hotmem_testkit::boot(&frames, &memory, BOOT);
    let movable = range(2 * SECTION, SECTION);
    hotmem_testkit::plug(&mut hotplug, movable);
    let mut machine = Machine { frames: &frames, hotplug, allocations: vec![] };
    machine.use_up();
    assert_eq!(frames.counts().free, movable.frames());
    test(machine);
    assert_eq!(frames.counts_in(movable).free, movable.frames());
    frames.validated().unwrap();
}

/// Returns the first frames of the memory that a chunk describes.
fn in_chunk(chunk: u64) -> PfnRange {
    range(chunk * CHUNK, PLUGGED)
}

impl Machine<'_> {
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
    without_kernel_memory(ROUNDS, |mut machine| {
        for chunk in 1..=ROUNDS {
            let before = machine.frames.counts();
            machine.plug(in_chunk(chunk), OnlineType::Kernel).unwrap();
            let after = machine.frames.counts();
            let (allocated, taken) = (after.free - before.free, after.words - before.words);
            // Of the added memory, one more frame holds bitmaps.
            assert_eq!(allocated + taken + 1, PLUGGED, "chunk {chunk}");
            machine.use_up();
            assert_eq!(machine.frames.counts().free, before.free);
        }
    });
}

#[test]
fn movable_memory_uses_up_the_word_reserve_and_then_additions_are_refused() {
    without_kernel_memory(1, |mut machine| {
        let far = hotmem::geometry::PFN_LIMIT / 2;
        let before_words = machine.count_metadata();
        // This memory is so far from all other memory that it needs a new piece of each kind.
        let first = range(far, PLUGGED);
        machine.hotplug.announce(first).unwrap();
        make_words(&mut machine.hotplug, first);
        assert_eq!(machine.count_metadata(), before_words, "the words came from the word reserve");
        let second = range(far + far / 2, PLUGGED);
        machine.hotplug.announce(second).unwrap();
        let before = machine.snapshot();
        let refused = machine.hotplug.add(second).unwrap_err();
        assert!(matches!(refused, AddError::NoMetadata(_)), "{refused}");
        assert!(machine.snapshot() == before);
        // Kernel memory that comes online refills the reserve.
        let new_kernel_memory = range(2 * SECTION + SECTION, PAGEBLOCK);
        machine.plug(new_kernel_memory, OnlineType::Kernel).unwrap();
        machine.use_up();
        make_words(&mut machine.hotplug, second);
        // The next addition refills the reserve as well, if the kernel has freed memory.
        let [third, last_region] = [far - CHUNK, far / 2].map(|at| range(at, PLUGGED));
        machine.hotplug.announce(third).unwrap();
        machine.hotplug.announce(last_region).unwrap();
        let before = machine.snapshot();
        assert!(matches!(machine.hotplug.add(third), Err(AddError::NoMetadata(_))));
        assert!(machine.snapshot() == before);
        let block = machine.allocations.iter().position(|used| used.frames() == PAGEBLOCK).unwrap();
        let block = machine.allocations.swap_remove(block);
        machine.frames.free_range(block).unwrap();
        make_words(&mut machine.hotplug, third);
        machine.use_up();
        make_words(&mut machine.hotplug, last_region);
    });
}

#[test]
fn a_refusal_divides_no_pageblock() {
    without_kernel_memory(1, |mut machine| {
        let block = machine.allocations.iter().position(|used| used.frames() == PAGEBLOCK).unwrap();
        let block = machine.allocations.swap_remove(block);
        machine.frames.free_range(block).unwrap();
        assert_eq!(machine.frames.counts().free_whole, SECTION + PAGEBLOCK);
        // The words take 12 KiB for each chunk, more than the free pageblock.
        let far = range(hotmem::geometry::PFN_LIMIT / 2, 200 * CHUNK);
        machine.hotplug.announce(far).unwrap();
        let before = machine.snapshot();
        assert!(matches!(machine.hotplug.add(far), Err(AddError::NoMetadata(_))));
        assert!(machine.snapshot() == before);
        assert_eq!(machine.frames.counts().free_whole, SECTION + PAGEBLOCK);
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
    for run in reserve {
        assert_eq!(
            hotplug.poison(run.start()),
            Err(RangeError { range: run, kind: RangeErrorKind::Metadata })
        );
        let block = run.start().align_down(PAGEBLOCK);
        let at = AllocRequest::frames(1).at(run.start());
        assert!(matches!(frames.alloc_range(at), Err(AllocError::NotFree(_))));
        let mut offline = match hotplug.offline(range(block.number(), PAGEBLOCK)) {
            Ok(offline) => offline,
            Err(error) => panic!("{error}"),
        };
        let progress = offline.poll(&mut hotplug, &mut NoHooks, Budget::UNLIMITED);
        assert!(
            matches!(progress, Progress::Pending(Blocker { kind: BlockerKind::Metadata, .. })),
            "{progress:?}"
        );
        offline.cancel(&mut hotplug, &mut NoHooks).unwrap();
    }
    assert_eq!(hotplug.state_at(Pfn::ZERO, pfn(SECTION)).1, State::Online);
    frames.validated().unwrap();
}
