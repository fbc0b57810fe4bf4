//! In each request, makes every step that can fail, fail once. A request that fails leaves the
//! machine as it was, and succeeds when it is repeated.

use hotmem::geometry::FRAME_SIZE;
use hotmem::*;
use hotmem_testkit::Raw as _;
use hotmem_testkit::Validated as _;
use hotmem_testkit::link::{Link, Maps, lend};
use hotmem_testkit::{BLOCK, Cpus, Memory, REMOTE, SECTION, Snapshot, numbers, pfn, range};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::Ordering;

const BOOT: u64 = 1;
const ALL: u64 = 6;
/// Announced, present, online movable, and partly in use.
const HOT: u64 = 2 * SECTION;
const HOT_SECTIONS: u64 = 3;

/// How a step of the kernel fails.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Fault {
    Veto,
    Pinned,
    Retry,
    /// The kernel finds no frame to migrate to.
    NoFrame,
}

/// A kernel that records the owner of each frame, and fails at one step.
struct Kernel<'f> {
    frames: &'f Frames<Cpus>,
    memory: &'f Memory,
    owners: BTreeMap<u64, u64>,
    agreed: BTreeSet<u64>,
    /// The number of steps before the fault.
    until: Option<u64>,
    fault: Fault,
    hit: bool,
    moved: bool,
}

impl<'f> Kernel<'f> {
    fn new(frames: &'f Frames<Cpus>, memory: &'f Memory) -> Kernel<'f> {
        let (owners, agreed) = (BTreeMap::new(), BTreeSet::new());
        let fault = Fault::Veto;
        Kernel { frames, memory, owners, agreed, until: None, fault, hit: false, moved: false }
    }

    fn own(&mut self, got: PfnRange) {
        for frame in numbers(got) {
            let owner = self.owners.len() as u64 + 1;
            self.owners.insert(frame, owner);
            self.memory.word(frame).store(owner, Ordering::Relaxed);
        }
    }

    /// Counts a step. Returns whether it must fail.
    fn fails(&mut self, possible: &[Fault]) -> bool {
        if !possible.contains(&self.fault) {
            return false;
        }
        let now = self.until == Some(0);
        self.until = self.until.and_then(|steps| steps.checked_sub(1));
        self.hit |= now;
        now
    }

    fn check_owners(&self) {
        let mut seen = BTreeSet::new();
        for (&frame, &owner) in &self.owners {
            assert_eq!(self.memory.word(frame).load(Ordering::Relaxed), owner);
            assert!(seen.insert(owner));
        }
    }

    fn used(&self) -> Vec<PfnRange> {
        self.owners.keys().map(|&frame| range(frame, 1)).collect()
    }
}

impl Hooks for Kernel<'_> {
    fn going_offline(&mut self, range: PfnRange) -> Result<(), Veto> {
        if self.fails(&[Fault::Veto]) {
            return Err(Veto("busy"));
        }
        assert!(numbers(range).all(|frame| self.agreed.insert(frame)), "asked twice: {range:?}");
        Ok(())
    }

    fn offlined(&mut self, range: PfnRange) {
        assert!(numbers(range).all(|frame| self.agreed.remove(&frame)), "never asked: {range:?}");
    }

    fn offline_cancelled(&mut self, range: PfnRange) {
        assert!(numbers(range).all(|frame| self.agreed.remove(&frame)), "never asked: {range:?}");
    }

    fn migrate(&mut self, used: PfnRange) -> Migration {
        if self.fails(&[Fault::Pinned, Fault::Retry, Fault::NoFrame]) {
            return match self.fault {
                Fault::Pinned => Migration::Unmovable("in use by a device"),
                _ => {
                    // It fails more than once, because the request retries at once.
                    self.until = Some(0);
                    Migration::Retry
                }
            };
        }
        for old in numbers(used) {
            let owner = self.owners.remove(&old).expect("a frame of the kernel's");
            let new =
                self.frames.take_raw(AllocRequest::frames(1).movable()).expect("enough memory");
            let new = new.start().number();
            self.memory.word(new).store(owner, Ordering::Relaxed);
            self.owners.insert(new, owner);
            self.frames.give_raw(range(old, 1)).expect("the kernel's");
        }
        self.moved = true;
        Migration::Moved
    }
}

/// The number of page tables that an addition needs.
struct Tables;

impl Maps for Tables {
    fn tables_needed(&self, _: PfnRange) -> u64 {
        3
    }
}

struct Machine<'f> {
    hotplug: Hotplug<'f, Cpus, Link<Tables>>,
    kernel: Kernel<'f>,
}

impl Machine<'_> {
    fn snapshot(&self) -> Snapshot {
        Snapshot::of(&self.hotplug, ALL * SECTION, &self.kernel.used())
    }

    /// Returns only states and counts, because frames may have been migrated.
    fn sums(&self) -> (Vec<State>, Counts) {
        let blocks = (0..ALL * SECTION / BLOCK).map(|b| (pfn(b * BLOCK), pfn((b + 1) * BLOCK)));
        let states = blocks.map(|(from, to)| self.hotplug.state_at(from, to).1);
        let mut counts = self.kernel.frames.validated().expect("it agrees with itself");
        // The number of whole pageblocks and of bitmap frames depends on where frames were migrated
        // to.
        counts.free += self.kernel.frames.metadata().map(|m| m.frames.frames()).sum::<u64>();
        counts.free_whole = 0;
        (states.collect(), counts)
    }

    /// Runs `act` with a fault at each step in turn, on a new machine each time, until there are no
    /// more steps. Returns the number of steps.
    fn with_each_fault(fault: Fault, act: impl Fn(&mut Machine<'_>)) -> u64 {
        for step in 0.. {
            let hit = on_a_machine(|m| {
                (m.kernel.fault, m.kernel.until) = (fault, Some(step));
                act(m);
                m.kernel.check_owners();
                m.kernel.hit
            });
            if !hit {
                return step;
            }
        }
        unreachable!("a request has an end")
    }
}

/// A machine with three removable sections: the first is nearly full of single frames, the second
/// has a few, the third has whole pageblocks. Boot memory has room for all of them.
fn on_a_machine<T>(test: impl FnOnce(&mut Machine<'_>) -> T) -> T {
    let memory = Memory::new(ALL * SECTION);
    let frames = Frames::new(Cpus);
    let ram = [BootRange { start: 0, len: Bytes(BOOT * SECTION * FRAME_SIZE) }];
    let map = BootMap::of_ram(&ram);
    let mut hotplug = hotmem_testkit::start(&frames, Link::new(memory.direct_map()), &map).unwrap();
    let divided = hotmem_testkit::divide_a_pageblock(&frames);
    let hot = range(HOT, HOT_SECTIONS * SECTION);
    hotplug.announce(hot).unwrap();
    hotplug.add(hot).unwrap();
    hotplug.online(hot, OnlineType::Movable, &mut NoHooks).unwrap();
    let mut kernel = Kernel::new(&frames, &memory);
    divided.into_iter().for_each(|got| kernel.own(got));
    let some = [
        (1, 1),
        (BLOCK + 1, 3),
        (2 * BLOCK, BLOCK),
        (SECTION + 5, 1),
        (SECTION + 2 * BLOCK - 2, 4),
        (2 * SECTION + BLOCK, BLOCK),
        (3 * SECTION - 1, 1),
    ];
    for (at, len) in some {
        kernel.own(frames.take_raw(AllocRequest::frames(len).at(pfn(HOT + at)).movable()).unwrap());
    }
    test(&mut Machine { hotplug, kernel })
}

fn offline_all<'f>(m: &mut Machine<'f>) -> Offline<'f, Cpus> {
    m.hotplug.offline(range(HOT, HOT_SECTIONS * SECTION)).unwrap()
}

/// Polls with small budgets until there is a result.
fn settle<'f>(m: &mut Machine<'f>, request: &mut Offline<'f, Cpus>) -> Progress<PfnRange> {
    loop {
        match request.poll(&mut m.hotplug, &mut m.kernel, Budget { pageblocks: 1 }) {
            Progress::Working => {}
            said => return said,
        }
    }
}

const FAULTS: [Fault; 4] = [Fault::Veto, Fault::Pinned, Fault::Retry, Fault::NoFrame];

fn is_of(fault: Fault, why: Why) -> bool {
    match fault {
        Fault::Veto => why == Why::Veto("busy"),
        Fault::Pinned => why == Why::Unmovable("in use by a device"),
        Fault::Retry | Fault::NoFrame => why == Why::Retry,
    }
}

#[test]
fn an_offline_request_that_fails_is_cancelled() {
    for fault in FAULTS {
        let steps = Machine::with_each_fault(fault, |m| {
            let (before, sums) = (m.snapshot(), m.sums());
            let mut request = offline_all(m);
            match settle(m, &mut request) {
                Progress::Pending(blocker) => {
                    assert!(m.kernel.hit && is_of(fault, blocker.why), "{blocker}");
                    request.cancel(&mut m.hotplug, &mut m.kernel).unwrap();
                    assert!(m.kernel.agreed.is_empty());
                    assert_eq!(m.sums(), sums);
                    assert!(m.kernel.moved || m.snapshot() == before);
                }
                done => assert!(!m.kernel.hit, "{done:?}"),
            }
        });
        assert!(steps >= 3, "{fault:?} had only {steps} steps to fail at");
    }
}

#[test]
fn an_offline_request_that_failed_goes_on() {
    for fault in FAULTS {
        Machine::with_each_fault(fault, |m| {
            let mut request = offline_all(m);
            let mut said = settle(m, &mut request);
            if m.kernel.hit {
                assert!(matches!(said, Progress::Pending(_)), "{said:?}");
                m.kernel.until = None;
                said = settle(m, &mut request);
            }
            let all = range(HOT, HOT_SECTIONS * SECTION);
            assert_eq!(said, Progress::Ready(all));
            assert_eq!(m.hotplug.state_at(all.start(), all.end()), (all, State::Offline));
            assert!(m.kernel.agreed.is_empty());
            m.hotplug.remove(all).unwrap();
            m.kernel.frames.validated().unwrap();
        });
    }
}

#[test]
fn a_shrink_passes_over_what_fails_and_keeps_the_rest() {
    for fault in [Fault::Veto, Fault::Pinned] {
        for unit in [BLOCK, SECTION, 2 * SECTION] {
            Machine::with_each_fault(fault, |m| {
                let wanted = range(HOT, HOT_SECTIONS * SECTION);
                let mut shrink = Shrink::new(ShrinkOptions { unit, ..wanted.into() });
                let mut gone = 0;
                let (left, blocker) = loop {
                    match shrink.poll(&mut m.hotplug, &mut m.kernel, Budget { pageblocks: 1 }) {
                        Progress::Ready(removal) => {
                            gone += removal.range().frames();
                            m.hotplug.commit_remove(removal).unwrap();
                        }
                        Progress::Working => {}
                        over => break (shrink.left(), over.pending()),
                    }
                };
                assert_eq!(gone + left, wanted.frames() / unit * unit);
                let counts = m.kernel.frames.validated().unwrap();
                assert_eq!((counts.movable, counts.isolated), (wanted.frames() - gone, 0));
                assert_eq!(left > 0, m.kernel.hit && blocker.is_some());
                // A section that was vetoed is tried again unit by unit.
                assert!(left <= unit, "{fault:?} of one step kept {left} of {gone} frames");
                assert!(blocker.is_none_or(|blocker| is_of(fault, blocker.why)));
            });
        }
    }
}

#[test]
fn a_device_that_refuses_leaves_the_memory_online() {
    for refused in 0..HOT_SECTIONS {
        on_a_machine(|m| {
            let wanted = range(HOT, HOT_SECTIONS * SECTION);
            let mut shrink =
                Shrink::new(ShrinkOptions { unit: SECTION, largest: SECTION, ..wanted.into() });
            for part in (0..HOT_SECTIONS).rev() {
                let removal = loop {
                    match shrink.poll(&mut m.hotplug, &mut m.kernel, Budget::UNLIMITED) {
                        Progress::Ready(removal) => break removal,
                        said => assert!(matches!(said, Progress::Working), "{said:?}"),
                    }
                };
                let section = range(HOT + part * SECTION, SECTION);
                assert_eq!(removal.range(), section);
                if part == refused {
                    m.hotplug.abandon_remove(removal, &mut m.kernel).unwrap();
                } else {
                    m.hotplug.commit_remove(removal).unwrap();
                }
                let expected = if part == refused { State::OnlineMovable } else { State::Absent };
                assert_eq!(m.hotplug.state_at(section.start(), section.end()).1, expected);
                m.kernel.frames.validated().unwrap();
            }
        });
    }
}

#[test]
fn a_device_that_refuses_offline_memory_leaves_it_offline() {
    on_a_machine(|m| {
        let more = range(HOT + HOT_SECTIONS * SECTION, SECTION);
        m.hotplug.announce(more).unwrap();
        m.hotplug.add(more).unwrap();
        let before = m.snapshot();
        let removal = m.hotplug.prepare_remove(more).unwrap();
        m.hotplug.abandon_remove(removal, &mut m.kernel).unwrap();
        assert_eq!(m.snapshot(), before);
    });
}

#[test]
fn a_device_that_brings_nothing_leaves_no_trace() {
    on_a_machine(|m| {
        let more = range(HOT + HOT_SECTIONS * SECTION, SECTION);
        m.hotplug.announce(more).unwrap();
        let before = m.snapshot();
        let addition = lend(&mut m.hotplug, &mut Tables, |hotplug, _| hotplug.prepare_add(more));
        let addition = addition.unwrap();
        assert_eq!(addition.tables().frames(), 3);
        drop(addition);
        assert_eq!(m.snapshot(), before);
    });
}

#[test]
fn without_room_nothing_is_moved() {
    on_a_machine(|m| {
        // All remaining free memory lies in the section that is taken offline.
        let mut taken = vec![];
        while let Ok(frame) = m.kernel.frames.take_raw(AllocRequest::frames(1).movable()) {
            taken.push(frame);
        }
        let last = range(HOT + 2 * SECTION, SECTION);
        let (back, stay): (Vec<_>, Vec<_>) = taken.iter().partition(|&&frame| last.covers(frame));
        for frame in back {
            m.kernel.frames.give_raw(frame).unwrap();
        }
        // A pageblock that a hint names stays divided although all its frames are free.
        let mut whole = vec![];
        while let Ok(block) = m.kernel.frames.take_raw(AllocRequest::frames(BLOCK).movable()) {
            whole.push(block);
        }
        whole.into_iter().for_each(|block| m.kernel.frames.give_raw(block).unwrap());
        let used: Vec<_> = stay.into_iter().chain(m.kernel.used()).collect();
        let before = Snapshot::of(&m.hotplug, ALL * SECTION, &used);
        let mut request = m.hotplug.offline(last).unwrap();
        let Progress::Pending(blocker) = settle(m, &mut request) else {
            panic!("there is no room")
        };
        assert!(matches!(blocker.why, Why::NoRoom { free: 0, .. }), "{blocker}");
        request.cancel(&mut m.hotplug, &mut m.kernel).unwrap();
        assert!(!m.kernel.moved && m.kernel.agreed.is_empty());
        assert_eq!(Snapshot::of(&m.hotplug, ALL * SECTION, &used), before);
    });
}

#[test]
fn a_window_that_somebody_else_holds_is_named() {
    for at in 0..HOT_SECTIONS {
        on_a_machine(|m| {
            let frames = m.kernel.frames;
            let token = frames.isolate(range(HOT + at * SECTION + BLOCK, BLOCK)).unwrap();
            let held = token.range();
            let mut request = offline_all(m);
            let said = settle(m, &mut request);
            let blocker = Blocker { range: held, why: Why::HeldByAnother };
            assert_eq!(said, Progress::Pending(blocker));
            token.release();
            assert!(matches!(settle(m, &mut request), Progress::Ready(_)));
        });
    }
}

#[test]
fn words_come_from_anywhere_but_are_never_moved() {
    on_a_machine(|m| {
        let frames = m.kernel.frames;
        // Boot memory is full, so the words of another range lie in memory that was added.
        let more = range(HOT + HOT_SECTIONS * SECTION, SECTION);
        m.hotplug.announce(more).unwrap();
        m.hotplug.add(more).unwrap();
        while frames.take_raw(AllocRequest::frames(1)).is_ok() {}
        m.hotplug.online(more, OnlineType::Kernel, &mut NoHooks).unwrap();
        m.hotplug.announce(range(REMOTE, BLOCK)).unwrap();
        drop(m.hotplug.prepare_add(range(REMOTE, BLOCK)).unwrap());
        let metadata = frames.metadata().map(|m| m.frames);
        let words: Vec<_> = metadata.filter(|&words| more.covers(words)).collect();
        assert!(!words.is_empty());
        let mut request = m.hotplug.offline(more).unwrap();
        let said = settle(m, &mut request);
        let Progress::Pending(blocker) = said else { panic!("its words are still needed") };
        assert!(words.contains(&blocker.range) && blocker.why == Why::Metadata, "{blocker}");
        request.cancel(&mut m.hotplug, &mut m.kernel).unwrap();
        frames.validated().unwrap();
    });
}
