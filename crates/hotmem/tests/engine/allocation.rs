//! Tests that dropping an `Allocation` frees exactly its frames, once.

use fastrand::Rng;
use hotmem::*;
use hotmem::{RangeError, RangeErrorKind};
use hotmem_testkit::RawRanges as _;
use hotmem_testkit::Validated as _;
use hotmem_testkit::{Memory, PAGEBLOCK, SECTION, boot, pfn, range};

type Owned<'f> = Allocation<'f, OneCpu>;

fn with_instance(test: impl FnOnce(&Frames<OneCpu>, &mut Hotplug<'_, OneCpu>)) {
    let memory = Memory::new(4 * SECTION);
    let frames = Frames::new(OneCpu);
    let mut hotplug = boot(&frames, &memory, 2 * SECTION);
    // Both sections allocate their frame bitmaps now, so that the counts of free frames do not
    // change later.
    for section in 0..2 {
        drop(frames.alloc(AllocRequest::frames(1).at(pfn(section * SECTION + PAGEBLOCK))).unwrap());
    }
    test(&frames, &mut hotplug);
    frames.validated().unwrap();
}

#[test]
fn dropped_allocations_are_free_again_and_forgotten_ones_are_not() {
    with_instance(|frames, _| {
        let free = frames.counts().free;
        for len in [1, 3, PAGEBLOCK - 1, PAGEBLOCK, 3 * PAGEBLOCK + 1] {
            let owned = frames.alloc(AllocRequest::frames(len)).unwrap();
            assert_eq!((owned.range().frames(), frames.counts().free), (len, free - len));
            assert_eq!(owned.range(), range(owned.range().start().number(), len));
            drop(owned);
            assert_eq!(frames.counts().free, free);
        }
        let raw = frames.alloc(AllocRequest::frames(3)).unwrap().into_raw();
        assert_eq!(frames.counts().free, free - 3);
        frames.free_range(raw).unwrap();
        assert_eq!(frames.counts().free, free);
    });
}

#[test]
fn an_allocation_can_be_split_at_every_frame() {
    with_instance(|frames, _| {
        let free = frames.counts().free;
        for len in [1, 5, PAGEBLOCK, PAGEBLOCK + 3] {
            for frames_below in 0..=len {
                let owned = frames.alloc(AllocRequest::frames(len)).unwrap();
                let all = owned.range();
                let at = pfn(all.start().number() + frames_below);
                let (below, above) = owned.split_at(at);
                assert_eq!((below.range(), above.range()), all.split_at(at));
                assert_eq!(frames.counts().free, free - len);
                drop(below);
                assert_eq!(frames.counts().free, free - above.range().frames());
            }
        }
        assert_eq!(frames.counts().free, free);
    });
}

#[test]
fn a_frame_that_is_poisoned_in_an_allocation_is_quarantined_when_it_is_freed() {
    with_instance(|frames, hotplug| {
        let free = frames.counts().free;
        let owned = frames.alloc(AllocRequest::frames(5)).unwrap();
        let bad = owned.range().chunks(1).nth(2).unwrap();
        assert_eq!(hotplug.poison(bad.start()), Ok(Poisoned::InUse));
        let (below, above) = owned.split_at(bad.end());
        drop(above);
        drop(below);
        assert_eq!(frames.counts().free, free - 1);
        let refused = RangeError { range: bad, kind: RangeErrorKind::NotAllocated };
        assert_eq!(frames.free_range(bad), Err(refused));
    });
}

#[test]
fn fill_and_free_raw_fills_memory_with_the_promised_contents() {
    let memory = Memory::new(2 * SECTION);
    let frames = Frames::new(OneCpu);
    let _hotplug = boot(&frames, &memory, SECTION);
    frames.set_contents(Contents::Filled(0)).unwrap();
    let owned = frames.alloc(AllocRequest::frames(2)).unwrap();
    let frame = owned.range().start().number();
    memory.word(frame).store(7, std::sync::atomic::Ordering::Relaxed);
    // SAFETY: the frames are those of `owned`, which nobody uses any more.
    unsafe { frames.fill_and_free_raw(owned.into_raw()) }.unwrap();
    assert!(memory.words(frame).all(|word| word == 0));
}

/// Splits and drops allocations at random. They must never overlap, and at the end all
/// memory must be free.
#[test]
fn random_allocations_never_overlap_and_no_frame_is_lost() {
    for seed in 0..if cfg!(miri) { 1 } else { 40 } {
        with_instance(|frames, _| {
            let free = frames.counts().free;
            let mut rng = Rng::with_seed(seed);
            let mut all: Vec<Owned<'_>> = Vec::new();
            for _ in 0..300 {
                let index = rng.usize(..=all.len());
                match rng.u32(..3) {
                    0 => all
                        .extend(frames.alloc(AllocRequest::frames(rng.u64(1..2 * PAGEBLOCK))).ok()),
                    1 if index < all.len() => {
                        let owned = all.swap_remove(index);
                        let middle =
                            owned.range().start().number() + rng.u64(..=owned.range().frames());
                        let (below, above) = owned.split_at(pfn(middle));
                        all.extend([below, above]);
                    }
                    _ if index < all.len() => drop(all.swap_remove(index)),
                    _ => {}
                }
                let held: u64 = all.iter().map(|owned| owned.range().frames()).sum();
                let bitmaps = frames.counts().used - held;
                assert!(frames.counts().free <= free - held, "{bitmaps}");
                all.sort_by_key(|owned| (owned.range().start(), owned.range().frames()));
                let pairs = all.windows(2);
                pairs.for_each(|pair| assert!(!pair[0].range().overlaps(pair[1].range())));
            }
            all.clear();
            let bitmaps = free - frames.validated().unwrap().free;
            assert!(
                bitmaps <= 2,
                "{bitmaps} frames are not free at the end, more than the bitmaps need"
            );
        });
    }
}

#[test]
fn a_request_for_boot_memory_gets_no_other() {
    let (frames, memory) = (Frames::new(OneCpu), Memory::new(2 * SECTION));
    let mut hotplug = boot(&frames, &memory, SECTION);
    let plugged = range(SECTION, SECTION);
    hotplug.announce(plugged).unwrap();
    hotplug.add(plugged).unwrap();
    hotplug.online(plugged, OnlineType::Kernel, &mut NoHooks).unwrap();
    for len in [1, 5, PAGEBLOCK, 2 * PAGEBLOCK] {
        let request = AllocRequest::frames(len).in_boot_memory();
        let place = range(SECTION, len);
        let refused = frames.alloc_range(request.at(place.start()));
        assert!(matches!(refused, Err(AllocError::NotFree(_))), "{refused:?}");
        while let Ok(allocated) = frames.alloc_range(request) {
            assert!(range(0, SECTION).covers(allocated), "{allocated}");
        }
        let other = frames.alloc_range(AllocRequest::frames(len)).unwrap();
        frames.free_range(other).unwrap();
    }
}
