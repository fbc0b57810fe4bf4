//! Tests that a persistent shrink keeps a unit isolated while it is pending, and then tries the
//! whole range again.

use hotmem::*;
use hotmem_testkit::RawRanges as _;
use hotmem_testkit::Validated as _;
use hotmem_testkit::{Memory, PAGEBLOCK, SECTION, range};

const BOOT_FRAMES: u64 = SECTION;
const HOTPLUG_FRAMES: u64 = 2 * SECTION;
/// The pageblocks of hotplugged memory in which a frame is in use, the lowest first.
const USED_BLOCKS: [u64; 3] = [1, 3, SECTION / PAGEBLOCK + 1];

/// A kernel that migrates nothing, and that may refuse to let memory go offline.
#[derive(Default)]
struct Kernel {
    refuses_offlining: bool,
    /// The number of frames for which `going_offline` was called, but neither `offlined` nor
    /// `offline_cancelled`.
    going_offline: u64,
}

impl Hooks for Kernel {
    fn going_offline(&mut self, range: PfnRange) -> Result<(), Veto> {
        if self.refuses_offlining {
            return Err(Veto("refused"));
        }
        self.going_offline += range.frames();
        Ok(())
    }

    fn offlined(&mut self, range: PfnRange) {
        self.going_offline -= range.frames();
    }

    fn offline_cancelled(&mut self, range: PfnRange) {
        self.going_offline -= range.frames();
    }
}

/// An instance with a persistent shrink of all its hotplugged memory.
struct ShrinkingMachine<'f> {
    frames: &'f Frames<OneCpu>,
    hotplug: Hotplug<'f, OneCpu>,
    shrink: Shrink<'f, OneCpu>,
    kernel: Kernel,
    /// The frames in use in the pageblocks of [`USED_BLOCKS`].
    frames_in_use: [Option<PfnRange>; 3],
}

fn with_shrinking_instance(test: impl FnOnce(&mut ShrinkingMachine<'_>)) {
    let (frames, memory) = (Frames::new(OneCpu), Memory::new(BOOT_FRAMES + HOTPLUG_FRAMES));
    let mut hotplug = hotmem_testkit::boot(&frames, &memory, BOOT_FRAMES);
    let hot = range(BOOT_FRAMES, HOTPLUG_FRAMES);
    hotmem_testkit::plug(&mut hotplug, hot);
    let used = USED_BLOCKS.map(|block| {
        let at = AllocRequest::frames(1).movable().at(pageblock(block).start());
        Some(frames.alloc_range(at).unwrap())
    });
    let shrink = Shrink::new(ShrinkOptions { is_persistent: true, ..hot.into() });
    let mut instance = ShrinkingMachine {
        frames: &frames,
        hotplug,
        shrink,
        kernel: Kernel::default(),
        frames_in_use: used,
    };
    test(&mut instance);
    frames.validated().unwrap();
}

/// Returns a pageblock of hotplugged memory.
fn pageblock(number: u64) -> PfnRange {
    range(BOOT_FRAMES + number * PAGEBLOCK, PAGEBLOCK)
}

impl ShrinkingMachine<'_> {
    /// Polls the shrink, and commits its removals, until it is over or pending. Returns the number
    /// of pageblocks removed, and the blocker.
    fn poll(&mut self) -> (u64, Option<Blocker>) {
        let mut removed = 0;
        loop {
            match self.shrink.poll(&mut self.hotplug, &mut self.kernel, Budget { pageblocks: 3 }) {
                Progress::Ready(removal) => {
                    removed += removal.range().frames() / PAGEBLOCK;
                    self.hotplug.commit_remove(removal);
                }
                Progress::Working => {}
                ended => return (removed, hotmem_testkit::blocker_of(ended)),
            }
        }
    }

    /// Returns which pageblocks of [`USED_BLOCKS`] are isolated, by their index.
    fn isolated_blocks(&self) -> Vec<usize> {
        let is_isolated = |&index: &usize| {
            let second = range(pageblock(USED_BLOCKS[index]).start().number() + 1, 1);
            let request = AllocRequest::frames(1).movable().at(second.start());
            match self.frames.alloc_range(request) {
                Ok(frame) => {
                    self.frames.free_range(frame).unwrap();
                    false
                }
                Err(_) => self.frames_in_use[index].is_some(),
            }
        };
        let isolated: Vec<_> = (0..USED_BLOCKS.len()).filter(is_isolated).collect();
        let frames = isolated.len() as u64 * PAGEBLOCK;
        assert_eq!((self.frames.counts().isolated, self.kernel.going_offline), (frames, frames));
        isolated
    }

    fn free_frame_in_use(&mut self, index: usize) {
        self.frames.free_range(self.frames_in_use[index].take().unwrap()).unwrap();
    }
}

#[test]
fn a_unit_that_is_freed_while_it_is_isolated_is_removed() {
    with_shrinking_instance(|instance| {
        let (removed, blocker) = instance.poll();
        assert_eq!(removed, HOTPLUG_FRAMES / PAGEBLOCK - 3);
        assert_eq!(blocker.map(|blocker| blocker.range), instance.frames_in_use[2]);
        for index in [2, 1, 0] {
            assert_eq!(instance.isolated_blocks(), [index]);
            instance.free_frame_in_use(index);
            let (removed, blocker) = instance.poll();
            assert_eq!((removed, blocker.is_none()), (1, index == 0));
        }
        assert_eq!(
            (instance.frames.counts().present, instance.shrink.frames_left()),
            (BOOT_FRAMES, 0)
        );
        assert_eq!(instance.poll(), (0, None));
    });
}

#[test]
fn each_try_isolates_the_next_lower_unit() {
    with_shrinking_instance(|instance| {
        for index in [2, 1, 0, 2, 1, 0, 2] {
            instance.poll();
            assert_eq!(instance.isolated_blocks(), [index]);
        }
        assert_eq!(instance.shrink.frames_left(), 3 * PAGEBLOCK);
    });
}

#[test]
fn a_unit_that_is_freed_while_another_is_isolated_is_removed_at_the_next_try() {
    with_shrinking_instance(|instance| {
        instance.poll();
        instance.poll();
        assert_eq!(instance.isolated_blocks(), [1]);
        instance.free_frame_in_use(2);
        let (removed, blocker) = instance.poll();
        assert_eq!((removed, blocker.map(|blocker| blocker.range)), (1, instance.frames_in_use[1]));
        assert_eq!(instance.isolated_blocks(), [0]);
    });
}

#[test]
fn no_unit_is_isolated_after_a_veto() {
    with_shrinking_instance(|instance| {
        instance.kernel.refuses_offlining = true;
        let (removed, blocker) = instance.poll();
        assert_eq!((removed, blocker.unwrap().kind), (0, BlockerKind::Veto("refused")));
        assert_eq!(instance.isolated_blocks(), []);
        instance.kernel.refuses_offlining = false;
        assert_eq!(instance.poll().0, HOTPLUG_FRAMES / PAGEBLOCK - 3);
        assert_eq!(instance.isolated_blocks(), [2]);
    });
}

#[test]
fn no_unit_is_isolated_if_too_little_memory_is_free() {
    with_shrinking_instance(|instance| {
        instance.poll();
        instance.hotplug.settings.min_free_frames = 2 * BOOT_FRAMES;
        let (removed, blocker) = instance.poll();
        assert_eq!(removed, 0);
        assert!(matches!(blocker.unwrap().kind, BlockerKind::NotEnoughFree { .. }), "{blocker:?}");
        assert_eq!(instance.isolated_blocks(), []);
    });
}

#[test]
fn a_cancelled_shrink_releases_the_isolated_unit() {
    with_shrinking_instance(|instance| {
        instance.poll();
        assert_eq!(instance.isolated_blocks(), [2]);
        let shrink = std::mem::replace(
            &mut instance.shrink,
            Shrink::new(range(BOOT_FRAMES, HOTPLUG_FRAMES)),
        );
        shrink.cancel(&mut instance.hotplug, &mut instance.kernel);
        assert_eq!(instance.isolated_blocks(), []);
    });
}

/// Allocates single frames until no memory is free. Returns the frames.
fn allocate_all(frames: &Frames<OneCpu>, request: AllocRequest) -> Vec<PfnRange> {
    let mut all = vec![];
    loop {
        match frames.alloc_range(request) {
            Ok(frame) => all.push(frame),
            Err(error) => {
                assert_eq!(error, AllocError::OutOfMemory);
                return all;
            }
        }
    }
}

#[test]
fn an_allocation_takes_the_isolated_unit_back_before_it_fails() {
    with_shrinking_instance(|instance| {
        instance.poll();
        assert_eq!(instance.isolated_blocks(), [2]);
        // Movable memory is no use for a request for kernel memory.
        let kernel_frames = allocate_all(instance.frames, AllocRequest::frames(1));
        assert_eq!(instance.frames.counts().isolated, PAGEBLOCK);
        // The unit has all frames but one free, and nothing else is free.
        let frames = allocate_all(instance.frames, AllocRequest::frames(1).movable());
        let counts = instance.frames.counts();
        assert_eq!((counts.isolated, counts.free), (0, 0));
        assert!(frames.iter().all(|&frame| !kernel_frames.contains(&frame)));
        instance.frames.validated().unwrap();
        // The kernel learns at the next poll that the memory stays online.
        assert_eq!(instance.kernel.going_offline, PAGEBLOCK);
        let (removed, blocker) = instance.poll();
        assert!(matches!(blocker.unwrap().kind, BlockerKind::NotEnoughFree { .. }), "{blocker:?}");
        assert_eq!((removed, instance.kernel.going_offline), (0, 0));
        // The shrink goes on as soon as there is memory again.
        let all = kernel_frames.into_iter().chain(frames);
        all.for_each(|frame| instance.frames.free_range(frame).unwrap());
        instance.poll();
        let [isolated] = instance.isolated_blocks()[..] else { panic!("one unit is isolated") };
        (0..3).for_each(|index| instance.free_frame_in_use(index));
        assert!(isolated < 3);
        assert_eq!(instance.poll(), (3, None));
        assert_eq!(instance.frames.counts().present, BOOT_FRAMES);
    });
}

/// Many shrinks wait, more than the engine can list. Those that cannot be listed isolate nothing.
#[test]
fn any_number_of_shrinks_can_wait() {
    const SHRINKS: u64 = 12;
    const HOTPLUG_FRAMES: u64 = (SHRINKS * PAGEBLOCK).next_multiple_of(SECTION);
    let (frames, memory) = (Frames::new(OneCpu), Memory::new(BOOT_FRAMES + HOTPLUG_FRAMES));
    let mut hotplug = hotmem_testkit::boot(&frames, &memory, BOOT_FRAMES);
    hotmem_testkit::plug(&mut hotplug, range(BOOT_FRAMES, HOTPLUG_FRAMES));
    let mut shrinks: Vec<_> = (0..SHRINKS)
        .map(|n| {
            let block = pageblock(n);
            let at = AllocRequest::frames(1).movable().at(block.start());
            let used = frames.alloc_range(at).unwrap();
            let options = ShrinkOptions { is_persistent: true, ..block.into() };
            (Shrink::new(options), used)
        })
        .collect();
    let mut kernel = Kernel::default();
    for _ in 0..2 {
        for (shrink, used) in &mut shrinks {
            let polled = shrink.poll(&mut hotplug, &mut kernel, Budget::UNLIMITED);
            assert_eq!(hotmem_testkit::blocker_of(polled).map(|b| b.range), Some(*used));
        }
    }
    let parked = frames.parked_ranges().count() as u64;
    assert!((1..SHRINKS).contains(&parked));
    assert_eq!(frames.counts().isolated, parked * PAGEBLOCK);
    let all = allocate_all(&frames, AllocRequest::frames(1).movable());
    assert_eq!((frames.counts().isolated, frames.counts().free), (0, 0));
    all.into_iter().for_each(|frame| frames.free_range(frame).unwrap());
    for (mut shrink, used) in shrinks {
        frames.free_range(used).unwrap();
        let polled = shrink.poll(&mut hotplug, &mut kernel, Budget::UNLIMITED);
        let Progress::Ready(removal) = polled else { panic!("{polled:?}") };
        hotplug.commit_remove(removal);
    }
    assert_eq!(
        (kernel.going_offline, frames.counts().present),
        (0, BOOT_FRAMES + HOTPLUG_FRAMES - SHRINKS * PAGEBLOCK)
    );
    frames.validated().unwrap();
}
