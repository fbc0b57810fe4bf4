//! Tests what becomes of the memory that an offline request has isolated while the request is pending.

use hotmem::*;
use hotmem_testkit::RawRanges as _;
use hotmem_testkit::Validated as _;
use hotmem_testkit::{Memory, PAGEBLOCK, SECTION, pfn, range};

const BOOT_FRAMES: u64 = 2 * SECTION;

/// A kernel that migrates nothing. It records which memory stays online after all.
#[derive(Default)]
struct RefusingHooks {
    cancelled: Vec<PfnRange>,
}

impl Hooks for RefusingHooks {
    fn offline_cancelled(&mut self, range: PfnRange) {
        self.cancelled.push(range);
    }
}

/// Runs `test` with an offline request that is pending because a frame of its memory is in use, and
/// with that frame. All other memory is in use.
fn with_pending_request(
    test: impl for<'f> FnOnce(&Frames<OneCpu>, &mut Hotplug<'f, OneCpu>, Offline<'f, OneCpu>, PfnRange),
) {
    let hot = range(BOOT_FRAMES, 2 * SECTION);
    let memory = Memory::new(BOOT_FRAMES + hot.frames());
    let frames = Frames::new(OneCpu);
    let mut hotplug = hotmem_testkit::boot(&frames, &memory, BOOT_FRAMES);
    hotmem_testkit::plug(&mut hotplug, hot);
    let used = frames.alloc_range(AllocRequest::frames(1).movable().at(hot.start())).unwrap();
    let mut offline = hotplug.offline(hot).unwrap();
    let polled = offline.poll(&mut hotplug, &mut RefusingHooks::default(), Budget::UNLIMITED);
    let blocker = hotmem_testkit::blocker_of(polled).expect("the request is pending");
    assert!(matches!(blocker.kind, BlockerKind::Unmovable(_)), "{blocker}");
    while frames.alloc_range(AllocRequest::frames(1)).is_ok() {}
    assert_eq!(frames.counts().isolated, hot.frames());
    test(&frames, &mut hotplug, offline, used);
    assert_eq!(frames.validated().unwrap().isolated, 0);
}

#[test]
fn an_allocation_takes_isolated_memory_back_before_it_fails() {
    let last_block = BOOT_FRAMES + 2 * SECTION - PAGEBLOCK;
    let [frame, block] = [1, PAGEBLOCK].map(|frames| AllocRequest::frames(frames).movable());
    for request in [frame, block] {
        with_pending_request(|frames, hotplug, mut offline, used| {
            let hot = range(BOOT_FRAMES, 2 * SECTION);
            // No kernel memory is isolated, and who asks for an exact place gets no isolated memory.
            let kernel = AllocRequest::frames(1);
            assert_eq!(frames.alloc_range(kernel), Err(AllocError::OutOfMemory));
            let exact = request.at(pfn(last_block));
            assert!(matches!(frames.alloc_range(exact), Err(AllocError::NotFree(_))));
            assert_eq!(frames.counts().isolated, hot.frames());
            let allocated = frames.alloc_range(request).unwrap();
            assert!(hot.covers(allocated));
            assert_eq!(frames.validated().unwrap().isolated, 0);
            // The request begins again.
            let mut kernel = RefusingHooks::default();
            let polled = offline.poll(hotplug, &mut kernel, Budget::UNLIMITED);
            assert!(matches!(polled, Progress::Pending(_)), "{polled:?}");
            assert_eq!(kernel.cancelled, [hot]);
            frames.free_range(allocated).unwrap();
            frames.free_range(used).unwrap();
            let polled = offline.poll(hotplug, &mut kernel, Budget::UNLIMITED);
            assert_eq!(polled, Progress::Ready(hot));
            assert_eq!(kernel.cancelled, [hot]);
        });
    }
}

#[test]
fn a_pending_request_that_is_cancelled_or_dropped_gives_its_memory_back() {
    for (is_dropped, is_taken_back) in [(false, false), (false, true), (true, false), (true, true)]
    {
        with_pending_request(|frames, hotplug, offline, _| {
            if is_taken_back {
                frames.alloc_range(AllocRequest::frames(1).movable()).unwrap();
            }
            let mut kernel = RefusingHooks::default();
            if is_dropped {
                drop(offline);
            } else {
                offline.cancel(hotplug, &mut kernel);
            }
            let told = if is_dropped { vec![] } else { vec![range(BOOT_FRAMES, 2 * SECTION)] };
            assert_eq!(kernel.cancelled, told);
        });
    }
}
