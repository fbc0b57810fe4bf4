//! Tests that bulk calls and magazines have the same effect as allocating and freeing each frame
//! alone.

use fastrand::Rng;
use hotmem::*;
use hotmem::{RangeError, RangeErrorKind};
use hotmem_port::Magazine;
use hotmem_testkit::RawRanges as _;
use hotmem_testkit::Validated as _;
use hotmem_testkit::{Memory, PAGEBLOCK, SECTION, boot, pfn, range};
use std::collections::BTreeSet;
use std::sync::Mutex;

const ONE_FRAME: AllocRequest = AllocRequest::frames(1);

fn with_instance(test: impl FnOnce(&Frames<OneCpu>, &mut Hotplug<'_, OneCpu>)) {
    let memory = Memory::new(4 * SECTION);
    let frames = Frames::new(OneCpu);
    let mut hotplug = boot(&frames, &memory, 2 * SECTION);
    test(&frames, &mut hotplug);
    frames.validated().unwrap();
}

/// Returns a list that a bulk call can write `len` frames to.
fn empty_list(len: u64) -> Vec<Pfn> {
    vec![Pfn::ZERO; usize::try_from(len).unwrap()]
}

/// Allocates `len` frames, or fewer if not enough are free.
fn alloc_frames(frames: &Frames<OneCpu>, request: AllocRequest, len: u64) -> Vec<Pfn> {
    let mut taken = empty_list(len);
    let filled = frames.alloc_many(request, &mut taken).unwrap_or(0);
    taken.truncate(filled);
    taken
}

fn free(frames: &Frames<OneCpu>, list: &[Pfn]) -> Result<(), RangeError> {
    // SAFETY: the tests never access the memory of their frames, so a wrong free harms nothing.
    unsafe { frames.free_many(list) }
}

#[test]
fn every_frame_is_allocated_once_and_freed() {
    with_instance(|frames, _| {
        // The first allocations also allocate bitmap frames, which stay allocated, so count the
        // free frames after that.
        let all = alloc_frames(frames, ONE_FRAME, 2 * SECTION);
        assert_eq!(frames.alloc_many(ONE_FRAME, &mut empty_list(3)), Err(AllocError::OutOfMemory));
        assert_eq!(frames.counts().free, 0);
        free(frames, &all).unwrap();
        let all_free = frames.counts().free;
        for request in [
            ONE_FRAME,
            ONE_FRAME.movable(),
            ONE_FRAME.within(..pfn(SECTION)),
            ONE_FRAME.node(NodeChoice::Near(NodeId::ZERO)),
        ] {
            for len in [0, 1, 2, PAGEBLOCK - 1, PAGEBLOCK, PAGEBLOCK + 1, 3 * PAGEBLOCK] {
                let mut taken = alloc_frames(frames, request, len);
                assert_eq!(taken.len() as u64, len.min(SECTION));
                let distinct: BTreeSet<_> = taken.iter().map(|frame| frame.number()).collect();
                assert_eq!(distinct.len(), taken.len());
                assert!(distinct.iter().all(|&frame| frame < 2 * SECTION));
                assert_eq!(frames.counts().free, all_free - taken.len() as u64);
                fastrand::shuffle(&mut taken);
                free(frames, &taken).unwrap();
                assert_eq!(frames.validated().unwrap().free, all_free);
            }
        }
    });
}

#[test]
fn alloc_many_allocates_only_frames_that_the_request_allows() {
    with_instance(|frames, hotplug| {
        let hot = range(2 * SECTION, SECTION);
        hotplug.announce(hot).unwrap();
        hotplug.add(hot).unwrap();
        hotplug.online(hot, OnlineType::Movable, &mut NoHooks).unwrap();
        let movable = alloc_frames(frames, ONE_FRAME.movable(), 2 * PAGEBLOCK);
        assert!(movable.iter().all(|&frame| hot.contains(frame)));
        let low = alloc_frames(frames, ONE_FRAME.within(..pfn(2 * PAGEBLOCK)), 3 * PAGEBLOCK);
        assert!(!low.is_empty() && low.iter().all(|&frame| frame < pfn(2 * PAGEBLOCK)));
        let kernel = alloc_frames(frames, ONE_FRAME, 4 * SECTION);
        assert!(kernel.iter().all(|&frame| !hot.contains(frame)));
        for list in [movable, low, kernel] {
            free(frames, &list).unwrap();
        }
        let two = AllocError::Bad(BadRequest::NotSingle { frames: 2 });
        assert_eq!(frames.alloc_many(AllocRequest::frames(2), &mut empty_list(4)), Err(two));
        let none = AllocError::Bad(BadRequest::Empty);
        assert_eq!(frames.alloc_many(AllocRequest::frames(0), &mut empty_list(4)), Err(none));
        let [exact] = alloc_frames(frames, ONE_FRAME.at(pfn(PAGEBLOCK + 3)), 4)[..] else {
            panic!("one frame is at an exact place")
        };
        assert_eq!(exact, pfn(PAGEBLOCK + 3));
        free(frames, &[exact]).unwrap();
    });
}

#[test]
fn free_many_names_the_first_frame_that_is_not_allocated_and_frees_all_others() {
    with_instance(|frames, _| {
        let before = frames.counts().free;
        let taken = alloc_frames(frames, ONE_FRAME, 8);
        let bitmap_frames = before - frames.counts().free - 8;
        // A list that contains one frame twice, and a frame that is not present.
        let mut list = taken.clone();
        list.insert(4, taken[1]);
        list.push(pfn(3 * SECTION));
        let error = free(frames, &list).unwrap_err();
        assert_eq!(error.range, range(taken[1].number(), 1));
        assert_eq!(error.kind, RangeErrorKind::NotAllocated);
        assert_eq!(frames.validated().unwrap().free, before - bitmap_frames);
        let error = free(frames, &[pfn(3 * SECTION)]).unwrap_err();
        assert_eq!(error.kind, RangeErrorKind::Foreign);
        assert_eq!(free(frames, &[]), Ok(()));
    });
}

/// Frees the frames of several allocations in one call, in random order: single frames, parts of
/// pageblocks, whole pageblocks, and a poisoned frame.
#[test]
fn frames_of_any_allocation_can_be_freed_together() {
    with_instance(|frames, hotplug| {
        let rng = &mut Rng::with_seed(7);
        // This makes the bitmaps of all sections, so that later calls allocate no frames for
        // bitmaps, which would change the count of free frames.
        free(frames, &alloc_frames(frames, ONE_FRAME, 2 * SECTION)).unwrap();
        let before = frames.counts().free;
        let mut list = vec![];
        for len in [1, 5, PAGEBLOCK, 2 * PAGEBLOCK, PAGEBLOCK / 8] {
            let allocated = frames.alloc_range(AllocRequest::frames(len)).unwrap();
            list.extend((allocated.start().number()..allocated.end().number()).map(pfn));
        }
        let bad = list[list.len() / 2];
        // The frame is allocated, so it is quarantined only when it is freed.
        let _in_use = hotplug.poison(bad);
        rng.shuffle(&mut list);
        free(frames, &list).unwrap();
        assert_eq!(frames.validated().unwrap().free, before - 1);
        assert_eq!(frames.counts().poisoned, 1);
    });
}

/// A kernel with a magazine. It drains the magazine when the engine asks for that.
struct WithMagazine;

static FRAMES: Frames<WithMagazine> = Frames::new(WithMagazine);
static MAGAZINE: Mutex<Option<Magazine<'_, WithMagazine, 8>>> = Mutex::new(None);

impl Platform for WithMagazine {
    fn cpu(&self) -> usize {
        0
    }

    fn drain_magazines(&self) -> bool {
        // If the lock is taken, the magazine's own `alloc` has led to this call, so it cannot be
        // drained now.
        let Ok(mut guard) = MAGAZINE.try_lock() else { return false };
        let Some(magazine) = &mut *guard else { return false };
        magazine.drain()
    }
}

#[test]
fn a_magazine_keeps_at_most_its_capacity_and_frees_all_frames_when_dropped() {
    with_instance(|frames, _| {
        free(frames, &alloc_frames(frames, ONE_FRAME, 2 * SECTION)).unwrap();
        let before = frames.counts().free;
        let rng = &mut Rng::with_seed(3);
        let mut magazine = Magazine::<_, 8>::new(frames, ONE_FRAME);
        let mut held: Vec<Pfn> = vec![];
        for _ in 0..if cfg!(miri) { 200 } else { 20_000 } {
            if held.is_empty() || rng.usize(..40) > held.len() {
                held.push(magazine.alloc().unwrap());
            } else {
                let frame = held.swap_remove(rng.usize(..held.len()));
                // SAFETY: `frame` came from the magazine, and nothing uses it.
                unsafe { magazine.free(frame) };
            }
            let distinct: BTreeSet<_> = held.iter().map(|frame| frame.number()).collect();
            assert_eq!(distinct.len(), held.len());
            let at_hand = before - frames.counts().free - held.len() as u64;
            assert!(at_hand <= 8, "{at_hand}");
        }
        free(frames, &held).unwrap();
        drop(magazine);
        assert_eq!(frames.counts().free, before);
    });
}

#[test]
fn magazines_are_drained_when_memory_runs_out_goes_offline_or_is_poisoned() {
    let memory = Memory::new(2 * SECTION);
    let mut hotplug = boot(&FRAMES, &memory, SECTION);
    let publish_magazine = |magazine| *MAGAZINE.lock().unwrap() = magazine;
    let withdraw_magazine = || MAGAZINE.lock().unwrap().take().unwrap();

    let mut magazine = Magazine::new(&FRAMES, ONE_FRAME);
    let first = magazine.alloc().unwrap();
    publish_magazine(Some(magazine));
    let mut taken = vec![];
    // When all other frames are allocated, the engine drains the magazine, so that its frames are
    // allocated as well.
    while let Ok(allocated) = FRAMES.alloc_range(ONE_FRAME) {
        taken.push(allocated.start());
    }
    assert_eq!(FRAMES.validated().unwrap().free, 0);
    let mut magazine = withdraw_magazine();
    assert_eq!(magazine.alloc(), Err(AllocError::OutOfMemory));
    // SAFETY: `first` came from the magazine, and nothing uses it.
    unsafe { magazine.free(first) };
    publish_magazine(Some(magazine));
    assert_eq!(FRAMES.alloc_range(ONE_FRAME).map(PfnRange::start), Ok(first));
    taken.push(first);
    // SAFETY: the test has allocated the frames of `taken`, and does not use them.
    unsafe { FRAMES.free_many(&taken) }.unwrap();

    let hot = range(SECTION, SECTION);
    hotplug.announce(hot).unwrap();
    hotplug.add(hot).unwrap();
    hotplug.online(hot, OnlineType::Movable, &mut NoHooks).unwrap();
    let mut magazine = Magazine::new(&FRAMES, ONE_FRAME.movable());
    let page = magazine.alloc().unwrap();
    assert!(hot.contains(page));
    // SAFETY: `page` came from the magazine, and nothing uses it.
    unsafe { magazine.free(page) };
    publish_magazine(Some(magazine));
    let mut offline = hotplug.offline(hot).unwrap();
    let done = offline.poll(&mut hotplug, &mut NoHooks, Budget::UNLIMITED);
    assert_eq!(done, Progress::Ready(hot));
    hotplug.remove(hot).unwrap();

    let mut magazine = Magazine::new(&FRAMES, ONE_FRAME);
    let page = magazine.alloc().unwrap();
    // SAFETY: `page` came from the magazine, and nothing uses it.
    unsafe { magazine.free(page) };
    publish_magazine(Some(magazine));
    assert_eq!(hotplug.poison(page), Ok(Poisoned::Quarantined));
    assert_ne!(withdraw_magazine().alloc(), Ok(page));
    assert_eq!(FRAMES.validated().unwrap().poisoned, 1);
}
