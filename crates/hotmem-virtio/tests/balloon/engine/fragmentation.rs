//! Tests that fragmented and pinned memory does not limit what the host gets.

use super::*;
use hotmem_testkit::RawRanges as _;

/// A guest of which the host overwrites nothing, so that it can be large, with a device that answers at
/// once.
struct LargeGuest<'f> {
    driver: Driver,
    memory: EngineMemory<'f, OneCpu>,
    config: hotmem_virtio::balloon::RawConfig,
    now: Duration,
    hinted_frames: u64,
    requests: u64,
}

impl<'f> LargeGuest<'f> {
    fn new(frames: &'f Frames<OneCpu>, features: Features, min_free: u64) -> LargeGuest<'f> {
        let config = Default::default();
        LargeGuest {
            driver: Driver::new(features, &config),
            memory: EngineMemory::new(frames, min_free),
            config,
            now: Duration::ZERO,
            hinted_frames: 0,
            requests: 0,
        }
    }

    /// Sets the target and runs the driver until it is idle, or has nothing to do for a second.
    fn inflate(&mut self, target: u64) {
        self.config.num_pages = u32::try_from(target).unwrap();
        self.run();
        assert_eq!(self.memory.inflated_frames(), self.driver.inflated_frames());
    }

    fn run(&mut self) {
        let end = self.now + Duration::from_secs(1);
        let mut answered = None;
        loop {
            match self.driver.step(self.now, &self.config, answered.take(), &mut self.memory) {
                Step::Ready(Ok(Action::Send(message))) => {
                    if let Message::Hint(range) = message {
                        self.hinted_frames += range.frames();
                    }
                    self.requests += 1;
                    answered = Some(message.queue().into());
                }
                Step::Ready(Ok(Action::SetActual(_))) | Step::Working => {}
                Step::Pending(until) if until <= end => self.now = until,
                Step::Pending(_) | Step::Idle => break,
                other => panic!("{other:?}"),
            }
        }
        self.now = end;
    }
}

/// Boots a machine of this size, of which `is_used` chooses the pageblocks or frames in use: all in
/// units of `unit` frames. Calls `check` with the number of free frames.
fn with_used(
    gib: u64,
    unit: u64,
    mut is_used: impl FnMut(u64) -> bool,
    check: impl FnOnce(&Frames<OneCpu>, Hotplug<'_, OneCpu>, u64),
) {
    let total = Bytes::gib(gib).frames();
    let (frames, ram) = (Frames::new(OneCpu), hotmem_testkit::Memory::new(total));
    let hotplug = boot(&frames, &ram, total);
    let mut all = Vec::new();
    while let Ok(range) = frames.alloc_range(AllocRequest::frames(unit).movable()) {
        all.push(range);
    }
    all.sort_by_key(|range| range.start());
    for (range, number) in all.into_iter().zip(0..) {
        if !is_used(number) {
            frames.free_range(range).unwrap();
        }
    }
    let free = frames.counts().free;
    check(&frames, hotplug, free);
    frames.validated().unwrap();
}

/// Checks that as many frames are free as before, but for one that the engine may have taken for the
/// bitmaps of each 64 MiB.
fn assert_all_are_back(frames: &Frames<OneCpu>, free_before: u64) {
    let counts = frames.counts();
    let lost = free_before - counts.free;
    assert!(lost <= counts.online / Bytes::mib(64).frames(), "{lost} frames are lost");
}

#[cfg(target_pointer_width = "64")]
#[test]
fn single_free_frames_spread_at_random_are_all_inflated_and_come_back() {
    let mut random = 20u64;
    // Knuth's generator.
    let mut is_used = move || {
        random =
            random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (random >> 33) % 100 < 20
    };
    with_used(
        4,
        1,
        |_| is_used(),
        |frames, mut hotplug, free| {
            let min_free = free / 50;
            let mut guest = LargeGuest::new(frames, Features::empty(), min_free);
            guest.inflate(u64::from(u32::MAX));
            let inflated = guest.memory.inflated_frames();
            assert!(inflated > free * 97 / 100, "{inflated} of {free} frames");
            let left = frames.counts().free;
            assert!((min_free..min_free + 16).contains(&left), "{left}, to keep {min_free}");
            assert!(guest.requests < inflated / 256 + 64, "{} requests", guest.requests);
            guest.inflate(0);
            assert_eq!(frames.counts().free, free, "frames are lost");
            // No pageblock counts as lent any more, although most are in use.
            hotplug.pin(range(0, Bytes::gib(4).frames()), |_| {}).unwrap();
        },
    );
}

#[cfg(target_pointer_width = "64")]
#[test]
fn every_second_pageblock_is_inflated_and_hinted() {
    with_used(
        2,
        PAGEBLOCK_FRAMES,
        |number| number % 2 == 0,
        |frames, _, free| {
            let mut guest = LargeGuest::new(frames, Features::FREE_PAGE_HINT, 0);
            guest.inflate(free * 99 / 100);
            assert_eq!(guest.driver.status(), Status::Settled);
            guest.inflate(0);
            guest.config.free_page_hint_cmd_id = 7;
            guest.config.generation += 1;
            guest.run();
            let hinted = guest.hinted_frames;
            assert!(hinted > free * 98 / 100, "hinted {hinted} of {free}");
            guest.config.free_page_hint_cmd_id = DONE;
            guest.config.generation += 1;
            guest.run();
            assert_all_are_back(frames, free);
        },
    );
}

#[test]
fn memory_beside_pinned_memory_is_inflated_and_hinted() {
    for pinned_unit in [1, PAGEBLOCK_FRAMES] {
        with_used(
            1,
            PAGEBLOCK_FRAMES,
            |_| false,
            |frames, mut hotplug, free| {
                // All of the memory that the allocator returns first, and 31 places above it.
                let first = frames.alloc_range(AllocRequest::frames(1).movable()).unwrap();
                frames.free_range(first).unwrap();
                let bottom = first.align_outward(PAGEBLOCK_FRAMES).start().number();
                let mut pinned = vec![range(bottom, Bytes::mib(128).frames())];
                let step = Bytes::mib(20).frames();
                pinned.extend((0..31).map(|n| range(bottom + 40_000 + n * step, pinned_unit)));
                for &pin in &pinned {
                    hotplug.pin(pin, |_| {}).unwrap();
                }
                let pinned_frames: u64 = pinned.iter().map(|pin| pin.frames()).sum();
                let mut guest = LargeGuest::new(frames, Features::FREE_PAGE_HINT, 0);
                guest.inflate(free - pinned_frames - 64);
                assert_eq!(guest.driver.status(), Status::Settled, "{pinned_unit}");
                guest.inflate(0);
                assert_all_are_back(frames, free);
            },
        );
    }
}
