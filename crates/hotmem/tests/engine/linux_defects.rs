//! Tests that the engine does not have known defects and costs of Linux's memory hotplug. Each
//! test describes what Linux does, or did in some version.
//!
//! Other tests of this kind lie beside the code: virtio-mem and the balloon in hotmem-virtio's
//! tests, free page reporting in `tests/engine/report/`, a DLPAR count that is read as a negative
//! number in hotmem-dlpar's tests, lost accessed and dirty bits in hotmem-pgtable's tests, page
//! descriptors that are written field by field in `crates/hotmem-memmap/src/tests/`.

use hotmem::*;
use hotmem::{RangeError, RangeErrorKind};
use hotmem_port::notify::{Chain, Change, Listener};
use hotmem_testkit::RawRanges as _;
use hotmem_testkit::Validated as _;
use hotmem_testkit::region_range;
use hotmem_testkit::{Memory, PAGEBLOCK, SECTION, Snapshot, pfn, range};

const BOOT_FRAMES: u64 = SECTION;
const HOTPLUG_FRAMES: u64 = 4 * SECTION;

fn boot<'f>(frames: &'f Frames<OneCpu>, memory: &Memory) -> Hotplug<'f, OneCpu> {
    let mut hotplug = hotmem_testkit::boot(frames, memory, BOOT_FRAMES);
    hotplug.announce(range(BOOT_FRAMES, HOTPLUG_FRAMES)).unwrap();
    hotplug
}

/// Runs `test` on an instance whose hotplugged memory is all online.
fn with_instance(test: impl FnOnce(&Frames<OneCpu>, &mut Hotplug<'_, OneCpu>, PfnRange)) {
    let (frames, memory) = (Frames::new(OneCpu), Memory::new(BOOT_FRAMES + HOTPLUG_FRAMES));
    let mut hotplug = boot(&frames, &memory);
    let hot = range(BOOT_FRAMES, HOTPLUG_FRAMES);
    hotplug.add(hot).unwrap();
    hotplug.online(hot, OnlineType::Movable, &mut NoHooks).unwrap();
    test(&frames, &mut hotplug, hot);
    frames.validated().unwrap();
}

/// A listener that records the events that it receives, and vetoes all changes if `refuses` is set.
#[derive(Default)]
struct RecordingListener {
    refuses: bool,
    events: Vec<&'static str>,
}

impl Listener for RecordingListener {
    fn going(&mut self, _: Change) -> Result<(), Veto> {
        self.events.push("going");
        if self.refuses { Err(Veto("no")) } else { Ok(()) }
    }
    fn cancelled(&mut self, _: Change) {
        self.events.push("cancelled");
    }
    fn done(&mut self, _: Change) {
        self.events.push("done");
    }
}

/// A kernel with a chain of three listeners.
#[derive(Default)]
struct ThreeListeners {
    listeners: [RecordingListener; 3],
}

impl ThreeListeners {
    fn second_refuses() -> ThreeListeners {
        let mut hooks = ThreeListeners::default();
        hooks.listeners[1].refuses = true;
        hooks
    }

    fn with_chain<T>(&mut self, act: impl FnOnce(&mut Chain<'_, 3>) -> T) -> T {
        let mut chain = Chain::new();
        for (listener, priority) in self.listeners.iter_mut().zip([3, 2, 1]) {
            chain.add(priority, listener).unwrap();
        }
        act(&mut chain)
    }
}

impl Hooks for ThreeListeners {
    fn going_offline(&mut self, range: PfnRange) -> Result<(), Veto> {
        self.with_chain(|chain| chain.notify_going(Change::Offline(range)))
    }
    fn offline_cancelled(&mut self, range: PfnRange) {
        self.with_chain(|chain| chain.notify_cancelled(Change::Offline(range)));
    }
    fn going_online(&mut self, range: PfnRange, _: Zone) -> Result<(), Veto> {
        self.with_chain(|chain| chain.notify_going(Change::Online(range)))
    }
    fn online_cancelled(&mut self, range: PfnRange) {
        self.with_chain(|chain| chain.notify_cancelled(Change::Online(range)));
    }
}

/// In Linux, when a check fails before the notifier chain runs, listeners receive
/// `MEM_CANCEL_ONLINE` or `MEM_CANCEL_OFFLINE` although they never received `MEM_GOING_ONLINE` or
/// `MEM_GOING_OFFLINE`.
#[test]
fn listeners_that_were_not_asked_receive_no_cancel_event() {
    with_instance(|frames, hotplug, hot| {
        let held = frames.isolate(range(BOOT_FRAMES, PAGEBLOCK)).unwrap();
        let mut hooks = ThreeListeners::default();
        let mut offline = hotplug.offline(hot).unwrap();
        let progress = offline.poll(hotplug, &mut hooks, Budget::UNLIMITED);
        assert!(matches!(
            progress,
            Progress::Pending(Blocker { kind: BlockerKind::HeldByAnother, .. })
        ));
        offline.cancel(hotplug, &mut hooks);
        let online = hotplug.online(hot, OnlineType::Kernel, &mut hooks);
        assert!(matches!(online, Err(RangeError { kind: RangeErrorKind::Online, .. })));
        assert!(hooks.listeners.iter().all(|listener| listener.events.is_empty()));
        held.release();
    });
}

/// In Linux, when a listener vetoes, the cancel event goes to all listeners: also to the one that
/// vetoed and to those after it, which never received the event that is cancelled.
#[test]
fn after_a_veto_only_listeners_that_agreed_receive_the_cancel_event() {
    with_instance(|_, hotplug, hot| {
        let mut hooks = ThreeListeners::second_refuses();
        let mut offline = hotplug.offline(hot).unwrap();
        let progress = offline.poll(hotplug, &mut hooks, Budget::UNLIMITED);
        assert!(matches!(
            progress,
            Progress::Pending(Blocker { kind: BlockerKind::Veto("no"), .. })
        ));
        offline.cancel(hotplug, &mut hooks);
        let events = hooks.listeners.map(|listener| listener.events);
        assert_eq!(events, [vec!["going", "cancelled"], vec!["going"], vec![]]);
    });
}

/// A kernel that claims to have migrated frames, but has not.
struct AlwaysMoved {
    calls: u32,
}

impl Hooks for AlwaysMoved {
    fn migrate(&mut self, _: PfnRange) -> Migration {
        self.calls += 1;
        Migration::Moved
    }
}

/// Linux's `offline_pages` scans and migrates in a loop without a bound for as long as some page of
/// the range stays.
#[test]
fn an_offline_request_gives_up_on_a_frame_that_is_never_migrated() {
    with_instance(|frames, hotplug, hot| {
        let stuck = frames.alloc_range(AllocRequest::frames(1).movable()).unwrap();
        let mut hooks = AlwaysMoved { calls: 0 };
        let mut offline = hotplug.offline(hot).unwrap();
        let progress = offline.poll(hotplug, &mut hooks, Budget::UNLIMITED);
        assert_eq!(progress, Progress::Pending(Blocker { range: stuck, kind: BlockerKind::Retry }));
        assert!(hooks.calls < 20, "{} tries", hooks.calls);
        // The request continues once the frame is free.
        frames.free_range(stuck).unwrap();
        let progress = offline.poll(hotplug, &mut hooks, Budget::UNLIMITED);
        assert_eq!(progress, Progress::Ready(hot));
    });
}

/// Linux's `try_remove_memory` ends in `BUG()` where a caller removes memory that is still online.
#[test]
fn removing_online_memory_is_an_error() {
    with_instance(|_, hotplug, hot| {
        let before = Snapshot::of(hotplug, BOOT_FRAMES + HOTPLUG_FRAMES, &[]);
        let error = hotplug.remove(hot);
        assert_eq!(
            error,
            Err(RangeError { range: range(BOOT_FRAMES, PAGEBLOCK), kind: RangeErrorKind::Online })
        );
        assert_eq!(Snapshot::of(hotplug, BOOT_FRAMES + HOTPLUG_FRAMES, &[]), before);
    });
}

/// In Linux, memory that holds its own page descriptors (`memmap_on_memory`) was not restored
/// completely when onlining or adding it failed. Hotmem's counterpart is a section with
/// self-hosted bitmaps, which the engine makes if boot memory has no free frame.
#[test]
fn self_hosted_metadata_survives_undone_requests_and_is_removed_with_its_memory() {
    with_instance(|frames, hotplug, hot| {
        // Boot memory is full before the other memory comes.
        let mut offline = hotplug.offline(hot).unwrap();
        let done = offline.poll(hotplug, &mut NoHooks, Budget::UNLIMITED);
        assert_eq!(done, Progress::Ready(hot));
        hotplug.remove(hot).unwrap();
        let mut boot: Vec<_> =
            std::iter::from_fn(|| frames.alloc_range(AllocRequest::frames(1)).ok()).collect();
        hotplug.add(hot).unwrap();
        hotplug.online(hot, OnlineType::Movable, &mut NoHooks).unwrap();
        let used = frames.alloc_range(AllocRequest::frames(1).movable()).unwrap();
        let self_hosted = |frames: &Frames<OneCpu>| {
            frames.metadata().filter(|metadata| hot.covers(metadata.frames)).count()
        };
        assert_eq!(self_hosted(frames), 1);
        // Now the frames in use could be migrated elsewhere, but the kernel does not migrate them.
        frames.free_range(boot.pop().unwrap()).unwrap();
        // Undo a request while some frames are in use, and then a shrink after all memory was
        // offline.
        let mut offline = hotplug.offline(hot).unwrap();
        let progress = offline.poll(hotplug, &mut NoHooks, Budget::UNLIMITED);
        assert!(matches!(
            progress,
            Progress::Pending(Blocker { kind: BlockerKind::Unmovable(_), .. })
        ));
        offline.cancel(hotplug, &mut NoHooks);
        assert_eq!(self_hosted(frames), 1);
        frames.validated().unwrap();
        frames.free_range(used).unwrap();
        let mut shrink = Shrink::new(ShrinkOptions { frames: HOTPLUG_FRAMES, ..hot.into() });
        let Progress::Ready(removal) = shrink.poll(hotplug, &mut NoHooks, Budget::UNLIMITED) else {
            panic!("the shrink did not take all hotplugged memory");
        };
        hotplug.abandon_remove(removal, &mut NoHooks);
        assert_eq!(frames.validated().unwrap().movable, HOTPLUG_FRAMES);
        let again = frames.alloc_range(AllocRequest::frames(1).movable()).unwrap();
        frames.free_range(again).unwrap();
        let mut shrink = Shrink::new(ShrinkOptions { frames: HOTPLUG_FRAMES, ..hot.into() });
        let Progress::Ready(removal) = shrink.poll(hotplug, &mut NoHooks, Budget::UNLIMITED) else {
            panic!("the shrink did not take all hotplugged memory");
        };
        hotplug.commit_remove(removal);
        assert_eq!((self_hosted(frames), frames.validated().unwrap().present), (0, BOOT_FRAMES));
        boot.into_iter().for_each(|frame| frames.free_range(frame).unwrap());
    });
}

/// Linux's `try_remove_memory` deletes the range's entry in the firmware map before checks that can
/// still refuse the removal. Here the region stays announced and usable when its removal or
/// withdrawal is refused.
#[test]
fn a_refused_removal_forgets_nothing() {
    with_instance(|_, hotplug, hot| {
        let (low, high) = hot.split_at(pfn(BOOT_FRAMES + SECTION));
        let mut offline = hotplug.offline(low).unwrap();
        let done = offline.poll(hotplug, &mut NoHooks, Budget::UNLIMITED);
        assert_eq!(done, Progress::Ready(low));
        let (region, _) = hotplug.regions().last().unwrap();
        let before = Snapshot::of(hotplug, BOOT_FRAMES + HOTPLUG_FRAMES, &[]);
        // Its first part could be removed, its second could not.
        let error = RangeError {
            range: range(high.start().number(), PAGEBLOCK),
            kind: RangeErrorKind::Online,
        };
        assert_eq!(hotplug.remove(hot), Err(error));
        let error =
            RangeError { range: range(BOOT_FRAMES, PAGEBLOCK), kind: RangeErrorKind::Present };
        assert_eq!(hotplug.withdraw(region), Err(error));
        assert_eq!(Snapshot::of(hotplug, BOOT_FRAMES + HOTPLUG_FRAMES, &[]), before);
        assert_eq!(region_range(hotplug, region), Some(hot));
    });
}

/// In Linux, a memory block that spans several zones may be online, but `offline_pages` refuses it
/// for ever.
#[test]
fn memory_of_several_zones_goes_offline_in_one_request() {
    with_instance(|_, hotplug, hot| {
        let middle = range(BOOT_FRAMES + SECTION, PAGEBLOCK);
        let mut offline = hotplug.offline(middle).unwrap();
        offline.poll(hotplug, &mut NoHooks, Budget::UNLIMITED);
        hotplug.online(middle, OnlineType::Kernel, &mut NoHooks).unwrap();
        let mut offline = hotplug.offline(hot).unwrap();
        let done = offline.poll(hotplug, &mut NoHooks, Budget::UNLIMITED);
        assert_eq!(done, Progress::Ready(hot));
    });
}

/// In Linux, a failure of auto-onlining does not fail `add_memory`: the block stays offline. Here
/// the caller also gets the error.
#[test]
fn a_veto_against_auto_online_does_not_undo_the_addition() {
    let (frames, memory) = (Frames::new(OneCpu), Memory::new(BOOT_FRAMES + HOTPLUG_FRAMES));
    let mut hotplug = boot(&frames, &memory);
    hotplug.settings.auto_online = OnlineType::Movable;
    let hot = range(BOOT_FRAMES, HOTPLUG_FRAMES);
    let mut hooks = ThreeListeners::second_refuses();
    hotplug.add(hot).unwrap();
    let refused = hotplug.online(hot, None, &mut hooks);
    assert!(
        matches!(refused, Err(RangeError { range, kind: RangeErrorKind::Vetoed(_) }) if range == hot)
    );
    assert_eq!(hotplug.state_at(hot.start(), hot.end()), (hot, State::Offline));
}

/// In Linux, a counter that says whether a zone is contiguous must not count an offline block,
/// although its page descriptors exist: otherwise the zone would seem to be contiguous across it.
#[test]
fn an_offline_block_inside_a_zone_does_not_make_it_contiguous() {
    with_instance(|_, hotplug, _| {
        let is_contiguous =
            |hotplug: &Hotplug<'_, OneCpu>| hotplug.zone(NodeId::ZERO, Zone::Movable).contiguous;
        assert!(is_contiguous(hotplug));
        let middle = range(BOOT_FRAMES + SECTION, SECTION);
        let mut offline = hotplug.offline(middle).unwrap();
        offline.poll(hotplug, &mut NoHooks, Budget::UNLIMITED);
        let zone = hotplug.zone(NodeId::ZERO, Zone::Movable);
        assert_eq!(
            (zone.spanned, zone.online),
            (range(BOOT_FRAMES, HOTPLUG_FRAMES), HOTPLUG_FRAMES - SECTION)
        );
        assert!(!is_contiguous(hotplug));
        // A block that is online in another zone does not count, either.
        hotplug.online(middle, OnlineType::Kernel, &mut NoHooks).unwrap();
        assert!(!is_contiguous(hotplug));
    });
}

/// Linux needs 64 bytes of free memory for the descriptor of each page before it can add memory.
/// Here it needs 12 KiB for the words of 8 GiB, once, and these words exist already.
#[test]
fn memory_is_added_though_no_frame_is_free() {
    let (frames, memory) = (Frames::new(OneCpu), Memory::new(BOOT_FRAMES + HOTPLUG_FRAMES));
    let mut hotplug = boot(&frames, &memory);
    hotmem_testkit::make_words(&mut hotplug, range(BOOT_FRAMES, HOTPLUG_FRAMES));
    while frames.alloc_range(AllocRequest::frames(1)).is_ok() {}
    assert_eq!(frames.counts().free, 0);
    let hot = range(BOOT_FRAMES, HOTPLUG_FRAMES);
    hotplug.add(hot).unwrap();
    hotplug.online(hot, OnlineType::Movable, &mut NoHooks).unwrap();
    assert_eq!(frames.validated().unwrap().free, HOTPLUG_FRAMES);
    assert!(frames.alloc_range(AllocRequest::frames(1).movable()).is_ok());
}

/// Linux's `offline_pages` scans every page of the range, free or not, in several passes. Here
/// hooks are called only for frames in use.
#[test]
fn only_frames_in_use_are_asked_about() {
    struct CountingHooks<'f>(&'f Frames<OneCpu>, u64);
    impl Hooks for CountingHooks<'_> {
        fn migrate(&mut self, used: PfnRange) -> Migration {
            self.1 += used.frames();
            self.0.free_range(used).unwrap();
            Migration::Freed
        }
    }
    with_instance(|frames, hotplug, hot| {
        let at = |frame| AllocRequest::frames(1).at(pfn(frame)).movable();
        for frame in [BOOT_FRAMES + 3, BOOT_FRAMES + 2 * SECTION, BOOT_FRAMES + HOTPLUG_FRAMES - 1]
        {
            frames.alloc_range(at(frame)).unwrap();
        }
        let mut hooks = CountingHooks(frames, 0);
        let mut offline = hotplug.offline(hot).unwrap();
        let done = offline.poll(hotplug, &mut hooks, Budget::UNLIMITED);
        assert_eq!((done, hooks.1), (Progress::Ready(hot), 3));
    });
}
