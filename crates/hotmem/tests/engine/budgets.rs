//! Tests that a poll does no more work than its budget allows. The work is counted, not timed.

use hotmem::*;
use hotmem_testkit::{Memory, PAGEBLOCK, RawRanges as _, SECTION, Validated as _, pfn, range};

const BOOT_FRAMES: u64 = 4 * SECTION;
const HOT_FRAMES: u64 = 3 * SECTION;
const BUDGETS: [u64; 3] = [0, 1, 5];

/// A kernel that moves all frames, or discards them, and counts the work.
#[derive(Clone, Copy)]
struct CountingHooks<'f> {
    frames: &'f Frames<OneCpu>,
    discards: bool,
    moved_frames: u64,
    windows: u64,
}

impl CountingHooks<'_> {
    fn free(&mut self, used: PfnRange) {
        self.frames.free_range(used).unwrap();
        self.moved_frames += used.frames();
    }
}

impl Hooks for CountingHooks<'_> {
    fn going_offline(&mut self, _: PfnRange) -> Result<(), Veto> {
        self.windows += 1;
        Ok(())
    }

    fn discard(&mut self, within: PfnRange) {
        if self.discards {
            self.free(within);
        }
    }

    fn migrate(&mut self, used: PfnRange) -> Migration {
        let new = AllocRequest::frames(used.frames()).within(..pfn(BOOT_FRAMES));
        if used.frames().is_power_of_two() && self.frames.alloc_range(new).is_ok() {
            self.free(used);
            return Migration::Moved;
        }
        self.free(used);
        Migration::Freed
    }
}

/// Takes movable memory offline, which `fill` has filled, once by [`Offline`] and once by
/// [`Shrink`]. Calls `check` with the budget and with the kernel before and after each poll.
fn each_poll(
    discards: bool,
    fill: impl Fn(&Frames<OneCpu>, PfnRange),
    check: impl Fn(u64, CountingHooks<'_>, CountingHooks<'_>),
) {
    for (pageblocks, is_shrink) in BUDGETS.into_iter().flat_map(|n| [(n, false), (n, true)]) {
        let memory = Memory::new(BOOT_FRAMES + HOT_FRAMES);
        let frames = Frames::new(OneCpu);
        let mut hotplug = hotmem_testkit::boot(&frames, &memory, BOOT_FRAMES);
        let hot = range(BOOT_FRAMES, HOT_FRAMES);
        hotmem_testkit::plug(&mut hotplug, hot);
        fill(&frames, hot);
        let mut kernel = CountingHooks { frames: &frames, discards, moved_frames: 0, windows: 0 };
        let mut shrink = Shrink::new(hot);
        let mut offline = hotplug.offline(hot).unwrap();
        loop {
            let before = kernel;
            let budget = Budget { pageblocks };
            let is_working = if is_shrink {
                match shrink.poll(&mut hotplug, &mut kernel, budget) {
                    Progress::Ready(removal) => {
                        hotplug.commit_remove(removal);
                        true
                    }
                    Progress::Working => true,
                    Progress::Idle => false,
                    Progress::Pending(blocker) => panic!("{blocker}"),
                }
            } else {
                match offline.poll(&mut hotplug, &mut kernel, budget) {
                    Progress::Working => true,
                    other => {
                        assert_eq!(other, Progress::Ready(hot));
                        false
                    }
                }
            };
            check(pageblocks, before, kernel);
            if !is_working {
                break;
            }
        }
        frames.validated().unwrap();
    }
}

fn fill_with_pageblocks(frames: &Frames<OneCpu>, hot: PfnRange) {
    for block in hot.chunks(PAGEBLOCK) {
        let whole = AllocRequest::frames(PAGEBLOCK).movable().at(block.start());
        frames.alloc_range(whole).unwrap();
    }
}

#[test]
fn a_poll_migrates_less_than_one_pageblock_more_than_its_budget() {
    each_poll(false, fill_with_pageblocks, |budget, before, after| {
        assert!(after.moved_frames - before.moved_frames <= budget.max(1) * PAGEBLOCK);
    });
    let every_third = |frames: &Frames<OneCpu>, hot: PfnRange| {
        for frame in hot.chunks(1).step_by(3) {
            frames.alloc_range(AllocRequest::frames(1).movable().at(frame.start())).unwrap();
        }
    };
    each_poll(false, every_third, |budget, before, after| {
        assert!(after.moved_frames - before.moved_frames <= (budget * PAGEBLOCK).max(1));
    });
}

#[test]
fn a_poll_discards_less_than_one_pageblock_more_than_its_budget() {
    let fill = |frames: &Frames<OneCpu>, hot: PfnRange| {
        fill_with_pageblocks(frames, hot);
        // Leave too little boot memory to migrate anything.
        while frames.alloc_range(AllocRequest::frames(PAGEBLOCK)).is_ok() {}
    };
    each_poll(true, fill, |budget, before, after| {
        assert!(after.moved_frames - before.moved_frames <= budget.max(1) * PAGEBLOCK);
    });
}

#[test]
fn a_free_window_costs_a_64th_of_a_pageblock_that_is_migrated() {
    let check = |budget: u64, before: CountingHooks<'_>, after: CountingHooks<'_>| {
        let windows = after.windows - before.windows;
        assert!(windows <= (budget * 64).max(1));
        // A budget of one pageblock suffices for all of this memory.
        assert!(budget == 0 || before.windows > 0 || windows == HOT_FRAMES / SECTION);
    };
    each_poll(false, |_, _| (), check);
}

/// A kernel that can do without no frame, and counts the calls.
#[derive(Default)]
struct RefusingHooks {
    windows: u64,
    discards: u64,
}

impl Hooks for RefusingHooks {
    fn going_offline(&mut self, _: PfnRange) -> Result<(), Veto> {
        self.windows += 1;
        Ok(())
    }

    fn discard(&mut self, _: PfnRange) {
        self.discards += 1;
    }
}

/// Before an offline request reports that too little memory is free, it counts the frames in use in
/// all that it has isolated.
#[test]
fn a_poll_counts_the_frames_of_one_window_more_than_its_budget() {
    const WINDOWS: u64 = 8;
    let hot = range(BOOT_FRAMES, WINDOWS * SECTION);
    let memory = Memory::new(BOOT_FRAMES + hot.frames());
    let frames = Frames::new(OneCpu);
    let mut hotplug = hotmem_testkit::boot(&frames, &memory, BOOT_FRAMES);
    hotmem_testkit::plug(&mut hotplug, hot);
    for window in hot.chunks(SECTION) {
        frames.alloc_range(AllocRequest::frames(1).movable().at(window.start())).unwrap();
    }
    // Leave enough memory for the frames of all windows but the last.
    let kept: Vec<_> =
        std::iter::from_fn(|| frames.alloc_range(AllocRequest::frames(1)).ok()).collect();
    for (frame, _) in kept.into_iter().zip(1..WINDOWS) {
        frames.free_range(frame).unwrap();
    }
    let mut kernel = RefusingHooks::default();
    let mut offline = hotplug.offline(hot).unwrap();
    let (mut idle_polls, mut calls) = (0, (0, 0));
    loop {
        match offline.poll(&mut hotplug, &mut kernel, Budget { pageblocks: 0 }) {
            Progress::Working => {}
            Progress::Pending(Blocker {
                kind: BlockerKind::NotEnoughFree { live, free }, ..
            }) => {
                assert_eq!((live, free), (WINDOWS, WINDOWS - 1));
                break;
            }
            other => panic!("{other:?}"),
        }
        let now = (kernel.windows, kernel.discards);
        idle_polls = if calls == now { idle_polls + 1 } else { 0 };
        calls = now;
    }
    // Nothing was called in these polls, so they have only counted.
    assert!(idle_polls >= WINDOWS - 2, "{idle_polls} polls for {} windows", WINDOWS - 1);
    offline.cancel(&mut hotplug, &mut NoHooks);
    frames.validated().unwrap();
}
