//! Makes each step of a request that can fail, fail once. Checks that a request that fails leaves
//! the instance unchanged, and succeeds when it is repeated.

use hotmem::geometry::FRAME_SIZE;
use hotmem::*;
use hotmem_testkit::RawRanges as _;
use hotmem_testkit::Validated as _;
use hotmem_testkit::forwarding::{ForwardingMapping, TestMapping, with_kernel};
use hotmem_testkit::{
    Cpus, DISTANT_PFN, Memory, PAGEBLOCK, SECTION, Snapshot, numbers, pfn, range,
};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::Ordering;

/// The numbers of sections of boot memory, and of all memory.
const BOOT_SECTIONS: u64 = 1;
const SECTIONS: u64 = 6;
/// The first frame of memory that is online movable and partly in use.
const MOVABLE_START: u64 = 2 * SECTION;
const HOT_SECTIONS: u64 = 3;

/// The way in which a step of the kernel fails.
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
    /// The frames whose offlining the kernel has agreed to.
    agreed_frames: BTreeSet<u64>,
    /// The number of steps before the fault. `None` after the fault, or if there is no fault.
    steps_left: Option<u64>,
    fault: Fault,
    /// Whether a step has failed.
    has_failed: bool,
    has_migrated: bool,
}

impl<'f> Kernel<'f> {
    fn new(frames: &'f Frames<Cpus>, memory: &'f Memory) -> Kernel<'f> {
        Kernel {
            frames,
            memory,
            owners: BTreeMap::new(),
            agreed_frames: BTreeSet::new(),
            steps_left: None,
            fault: Fault::Veto,
            has_failed: false,
            has_migrated: false,
        }
    }

    fn record_owned(&mut self, allocated: PfnRange) {
        for frame in numbers(allocated) {
            let owner = self.owners.len() as u64 + 1;
            self.owners.insert(frame, owner);
            self.memory.word(frame).store(owner, Ordering::Relaxed);
        }
    }

    /// Counts a step that can fail in the ways of `possible`. Returns whether the step must fail.
    fn must_fail(&mut self, possible: &[Fault]) -> bool {
        if !possible.contains(&self.fault) {
            return false;
        }
        let now = self.steps_left == Some(0);
        self.steps_left = self.steps_left.and_then(|steps| steps.checked_sub(1));
        self.has_failed |= now;
        now
    }

    fn check_owners(&self) {
        let mut owners = BTreeSet::new();
        for (&frame, &owner) in &self.owners {
            assert_eq!(self.memory.word(frame).load(Ordering::Relaxed), owner);
            assert!(owners.insert(owner));
        }
    }

    fn used(&self) -> Vec<PfnRange> {
        self.owners.keys().map(|&frame| range(frame, 1)).collect()
    }
}

impl Hooks for Kernel<'_> {
    fn going_offline(&mut self, range: PfnRange) -> Result<(), Veto> {
        if self.must_fail(&[Fault::Veto]) {
            return Err(Veto("busy"));
        }
        assert!(
            numbers(range).all(|frame| self.agreed_frames.insert(frame)),
            "the kernel was asked twice about {range:?}"
        );
        Ok(())
    }

    fn offlined(&mut self, range: PfnRange) {
        assert!(
            numbers(range).all(|frame| self.agreed_frames.remove(&frame)),
            "the kernel was never asked about {range:?}"
        );
    }

    fn offline_cancelled(&mut self, range: PfnRange) {
        assert!(
            numbers(range).all(|frame| self.agreed_frames.remove(&frame)),
            "the kernel was never asked about {range:?}"
        );
    }

    fn migrate(&mut self, used: PfnRange) -> Migration {
        if self.must_fail(&[Fault::Pinned, Fault::Retry, Fault::NoFrame]) {
            return match self.fault {
                Fault::Pinned => Migration::Unmovable("in use by a device"),
                _ => {
                    // Fail the next steps as well, because the request retries at once.
                    self.steps_left = Some(0);
                    Migration::Retry
                }
            };
        }
        for old in numbers(used) {
            let owner =
                self.owners.remove(&old).expect("the kernel owns each frame that it migrates");
            let new = self
                .frames
                .alloc_range(AllocRequest::frames(1).movable())
                .expect("boot memory suffices for all frames that are migrated");
            let new = new.start().number();
            self.memory.word(new).store(owner, Ordering::Relaxed);
            self.owners.insert(new, owner);
            self.frames.free_range(range(old, 1)).expect("the kernel frees its own frame");
        }
        self.has_migrated = true;
        Migration::Moved
    }
}

/// A kernel that needs three page tables for each addition.
struct Tables;

impl TestMapping for Tables {
    fn tables_needed(&self, _: PfnRange) -> u64 {
        3
    }
}

struct Instance<'f> {
    hotplug: Hotplug<'f, Cpus, ForwardingMapping<Tables>>,
    kernel: Kernel<'f>,
}

impl Instance<'_> {
    fn snapshot(&self) -> Snapshot {
        Snapshot::of(&self.hotplug, SECTIONS * SECTION, &self.kernel.used())
    }

    /// Returns the states and counts, which do not change when frames are migrated.
    fn states_and_counts(&self) -> (Vec<State>, Counts) {
        let blocks = (0..SECTIONS * SECTION / PAGEBLOCK)
            .map(|b| (pfn(b * PAGEBLOCK), pfn((b + 1) * PAGEBLOCK)));
        let states = blocks.map(|(from, to)| self.hotplug.state_at(from, to).1);
        let mut counts = self.kernel.frames.validated().expect("the instance is consistent");
        // Leave out the numbers of free pageblocks and of bitmap frames: they depend on the places
        // that frames were migrated to.
        counts.free +=
            self.kernel.frames.metadata().map(|metadata| metadata.frames.frames()).sum::<u64>();
        counts.free_whole = 0;
        (states.collect(), counts)
    }

    /// Runs `act` on a new instance for each step that can fail, and makes that step fail. Returns
    /// the number of such steps.
    fn with_each_fault(fault: Fault, act: impl Fn(&mut Instance<'_>)) -> u64 {
        for step in 0.. {
            let failed = with_instance(|instance| {
                (instance.kernel.fault, instance.kernel.steps_left) = (fault, Some(step));
                act(instance);
                instance.kernel.check_owners();
                instance.kernel.has_failed
            });
            if !failed {
                return step;
            }
        }
        unreachable!("a request has a finite number of steps")
    }
}

/// Runs `test` on an instance with three removable sections, in which single frames, runs and whole
/// pageblocks are in use. Boot memory has enough free frames to migrate all of them.
fn with_instance<T>(test: impl FnOnce(&mut Instance<'_>) -> T) -> T {
    let memory = Memory::new(SECTIONS * SECTION);
    let frames = Frames::new(Cpus);
    let ram = [BootRange { start: 0, len: Bytes(BOOT_SECTIONS * SECTION * FRAME_SIZE) }];
    let map = BootMap::from(&ram);
    let mut hotplug =
        hotmem_testkit::start(&frames, ForwardingMapping::new(memory.direct_map()), map).unwrap();
    let divided = hotmem_testkit::divide_two_pageblocks(&frames);
    let hot = range(MOVABLE_START, HOT_SECTIONS * SECTION);
    hotplug.announce(hot).unwrap();
    hotplug.add(hot).unwrap();
    hotplug.online(hot, OnlineType::Movable, &mut NoHooks).unwrap();
    let mut kernel = Kernel::new(&frames, &memory);
    divided.into_iter().for_each(|allocated| kernel.record_owned(allocated));
    let allocations = [
        (1, 1),
        (PAGEBLOCK + 1, 3),
        (2 * PAGEBLOCK, PAGEBLOCK),
        (SECTION + 5, 1),
        (SECTION + 2 * PAGEBLOCK - 2, 4),
        (2 * SECTION + PAGEBLOCK, PAGEBLOCK),
        (3 * SECTION - 1, 1),
    ];
    for (at, len) in allocations {
        kernel.record_owned(
            frames
                .alloc_range(AllocRequest::frames(len).at(pfn(MOVABLE_START + at)).movable())
                .unwrap(),
        );
    }
    test(&mut Instance { hotplug, kernel })
}

fn offline_all<'f>(instance: &mut Instance<'f>) -> Offline<'f, Cpus> {
    instance.hotplug.offline(range(MOVABLE_START, HOT_SECTIONS * SECTION)).unwrap()
}

/// Polls with small budgets until there is a result.
fn poll_to_end<'f>(
    instance: &mut Instance<'f>,
    request: &mut Offline<'f, Cpus>,
) -> Progress<PfnRange> {
    loop {
        match request.poll(&mut instance.hotplug, &mut instance.kernel, Budget { pageblocks: 1 }) {
            Progress::Working => {}
            progress => return progress,
        }
    }
}

const FAULTS: [Fault; 4] = [Fault::Veto, Fault::Pinned, Fault::Retry, Fault::NoFrame];

fn is_caused_by(fault: Fault, kind: BlockerKind) -> bool {
    match fault {
        Fault::Veto => kind == BlockerKind::Veto("busy"),
        Fault::Pinned => kind == BlockerKind::Unmovable("in use by a device"),
        Fault::Retry | Fault::NoFrame => kind == BlockerKind::Retry,
    }
}

#[test]
fn an_offline_request_that_fails_is_cancelled() {
    for fault in FAULTS {
        let steps = Instance::with_each_fault(fault, |instance| {
            let (before, states_and_counts) = (instance.snapshot(), instance.states_and_counts());
            let mut request = offline_all(instance);
            match poll_to_end(instance, &mut request) {
                Progress::Pending(blocker) => {
                    assert!(
                        instance.kernel.has_failed && is_caused_by(fault, blocker.kind),
                        "{blocker}"
                    );
                    request.cancel(&mut instance.hotplug, &mut instance.kernel);
                    assert!(instance.kernel.agreed_frames.is_empty());
                    assert_eq!(instance.states_and_counts(), states_and_counts);
                    assert!(instance.kernel.has_migrated || instance.snapshot() == before);
                }
                done => assert!(!instance.kernel.has_failed, "{done:?}"),
            }
        });
        assert!(steps >= 3, "{fault:?} had only {steps} steps to fail at");
    }
}

#[test]
fn an_offline_request_that_failed_continues_when_it_is_polled_again() {
    for fault in FAULTS {
        Instance::with_each_fault(fault, |instance| {
            let mut request = offline_all(instance);
            let mut progress = poll_to_end(instance, &mut request);
            if instance.kernel.has_failed {
                assert!(matches!(progress, Progress::Pending(_)), "{progress:?}");
                instance.kernel.steps_left = None;
                progress = poll_to_end(instance, &mut request);
            }
            let all = range(MOVABLE_START, HOT_SECTIONS * SECTION);
            assert_eq!(progress, Progress::Ready(all));
            assert_eq!(instance.hotplug.state_at(all.start(), all.end()), (all, State::Offline));
            assert!(instance.kernel.agreed_frames.is_empty());
            instance.hotplug.remove(all).unwrap();
            instance.kernel.frames.validated().unwrap();
        });
    }
}

#[test]
fn a_shrink_skips_a_unit_that_fails_and_removes_all_others() {
    for fault in [Fault::Veto, Fault::Pinned] {
        for unit in [PAGEBLOCK, SECTION, 2 * SECTION] {
            Instance::with_each_fault(fault, |instance| {
                let target = range(MOVABLE_START, HOT_SECTIONS * SECTION);
                let mut shrink = Shrink::new(ShrinkOptions { unit, ..target.into() });
                let mut removed = 0;
                let (remaining, blocker) = loop {
                    match shrink.poll(
                        &mut instance.hotplug,
                        &mut instance.kernel,
                        Budget { pageblocks: 1 },
                    ) {
                        Progress::Ready(removal) => {
                            removed += removal.range().frames();
                            instance.hotplug.commit_remove(removal);
                        }
                        Progress::Working => {}
                        ended => break (shrink.frames_left(), hotmem_testkit::blocker_of(ended)),
                    }
                };
                assert_eq!(removed + remaining, target.frames() / unit * unit);
                let counts = instance.kernel.frames.validated().unwrap();
                assert_eq!((counts.movable, counts.isolated), (target.frames() - removed, 0));
                assert_eq!(remaining > 0, instance.kernel.has_failed && blocker.is_some());
                // If a section is vetoed, the shrink tries again unit by unit, so only one unit
                // stays.
                assert!(
                    remaining <= unit,
                    "one {fault:?} left {remaining} frames online, more than a unit"
                );
                assert!(blocker.is_none_or(|blocker| is_caused_by(fault, blocker.kind)));
            });
        }
    }
}

#[test]
fn a_device_that_refuses_leaves_the_memory_online() {
    for refused in 0..HOT_SECTIONS {
        with_instance(|instance| {
            let target = range(MOVABLE_START, HOT_SECTIONS * SECTION);
            let mut shrink = Shrink::new(ShrinkOptions {
                unit: SECTION,
                max_run_frames: SECTION,
                ..target.into()
            });
            for part in (0..HOT_SECTIONS).rev() {
                let removal = loop {
                    match shrink.poll(
                        &mut instance.hotplug,
                        &mut instance.kernel,
                        Budget::UNLIMITED,
                    ) {
                        Progress::Ready(removal) => break removal,
                        progress => assert!(matches!(progress, Progress::Working), "{progress:?}"),
                    }
                };
                let section = range(MOVABLE_START + part * SECTION, SECTION);
                assert_eq!(removal.range(), section);
                if part == refused {
                    instance.hotplug.abandon_remove(removal, &mut instance.kernel);
                } else {
                    instance.hotplug.commit_remove(removal);
                }
                let expected = if part == refused { State::OnlineMovable } else { State::Absent };
                assert_eq!(instance.hotplug.state_at(section.start(), section.end()).1, expected);
                instance.kernel.frames.validated().unwrap();
            }
        });
    }
}

#[test]
fn a_device_that_refuses_offline_memory_leaves_it_offline() {
    with_instance(|instance| {
        let added = range(MOVABLE_START + HOT_SECTIONS * SECTION, SECTION);
        instance.hotplug.announce(added).unwrap();
        instance.hotplug.add(added).unwrap();
        let before = instance.snapshot();
        let removal = instance.hotplug.prepare_remove(added).unwrap();
        instance.hotplug.abandon_remove(removal, &mut instance.kernel);
        assert_eq!(instance.snapshot(), before);
    });
}

#[test]
fn an_addition_that_is_dropped_leaves_the_machine_unchanged() {
    with_instance(|instance| {
        let added = range(MOVABLE_START + HOT_SECTIONS * SECTION, SECTION);
        instance.hotplug.announce(added).unwrap();
        let before = instance.snapshot();
        let addition = with_kernel(&mut instance.hotplug, &mut Tables, |hotplug, _| {
            hotplug.prepare_add(added)
        });
        let addition = addition.unwrap();
        assert_eq!(addition.table_runs().map(PfnRange::frames).sum::<u64>(), 3);
        drop(addition);
        assert_eq!(instance.snapshot(), before);
    });
}

#[test]
fn without_headroom_no_frame_is_migrated() {
    with_instance(|instance| {
        // All remaining free memory lies in the section that is taken offline.
        let mut taken = vec![];
        while let Ok(frame) = instance.kernel.frames.alloc_range(AllocRequest::frames(1).movable())
        {
            taken.push(frame);
        }
        let last_section = range(MOVABLE_START + 2 * SECTION, SECTION);
        let (freed, still_used): (Vec<_>, Vec<_>) =
            taken.iter().partition(|&&frame| last_section.covers(frame));
        for frame in freed {
            instance.kernel.frames.free_range(frame).unwrap();
        }
        // A pageblock that a hint names stays divided although all its frames are free. Allocate
        // and free it as a whole, so that it is whole in both snapshots.
        let mut taken_blocks = vec![];
        while let Ok(block) =
            instance.kernel.frames.alloc_range(AllocRequest::frames(PAGEBLOCK).movable())
        {
            taken_blocks.push(block);
        }
        taken_blocks
            .into_iter()
            .for_each(|block| instance.kernel.frames.free_range(block).unwrap());
        let used: Vec<_> = still_used.into_iter().chain(instance.kernel.used()).collect();
        let before = Snapshot::of(&instance.hotplug, SECTIONS * SECTION, &used);
        let mut request = instance.hotplug.offline(last_section).unwrap();
        let Progress::Pending(blocker) = poll_to_end(instance, &mut request) else {
            panic!("the request went on without free memory to migrate to")
        };
        assert!(matches!(blocker.kind, BlockerKind::NotEnoughFree { free: 0, .. }), "{blocker}");
        request.cancel(&mut instance.hotplug, &mut instance.kernel);
        assert!(!instance.kernel.has_migrated && instance.kernel.agreed_frames.is_empty());
        assert_eq!(Snapshot::of(&instance.hotplug, SECTIONS * SECTION, &used), before);
    });
}

#[test]
fn memory_that_a_token_holds_is_named_as_the_blocker() {
    for section in 0..HOT_SECTIONS {
        with_instance(|instance| {
            let frames = instance.kernel.frames;
            let token = frames
                .isolate(range(MOVABLE_START + section * SECTION + PAGEBLOCK, PAGEBLOCK))
                .unwrap();
            let held = token.range();
            let mut request = offline_all(instance);
            let progress = poll_to_end(instance, &mut request);
            let blocker = Blocker { range: held, kind: BlockerKind::HeldByAnother };
            assert_eq!(progress, Progress::Pending(blocker));
            token.release();
            assert!(matches!(poll_to_end(instance, &mut request), Progress::Ready(_)));
        });
    }
}

#[test]
fn words_in_added_kernel_memory_block_its_removal() {
    with_instance(|instance| {
        let frames = instance.kernel.frames;
        // Boot memory is full, so the words of another range lie in memory that was added.
        let added = range(MOVABLE_START + HOT_SECTIONS * SECTION, SECTION);
        instance.hotplug.announce(added).unwrap();
        instance.hotplug.add(added).unwrap();
        while frames.alloc_range(AllocRequest::frames(1)).is_ok() {}
        instance.hotplug.online(added, OnlineType::Kernel, &mut NoHooks).unwrap();
        instance.hotplug.announce(range(DISTANT_PFN, PAGEBLOCK)).unwrap();
        drop(instance.hotplug.prepare_add(range(DISTANT_PFN, PAGEBLOCK)).unwrap());
        let metadata = frames.metadata().map(|metadata| metadata.frames);
        let words: Vec<_> = metadata.filter(|&words| added.covers(words)).collect();
        assert!(!words.is_empty());
        let mut request = instance.hotplug.offline(added).unwrap();
        let progress = poll_to_end(instance, &mut request);
        let Progress::Pending(blocker) = progress else {
            panic!("memory with words that are needed went offline")
        };
        assert!(
            words.contains(&blocker.range) && blocker.kind == BlockerKind::Metadata,
            "{blocker}"
        );
        request.cancel(&mut instance.hotplug, &mut instance.kernel);
        frames.validated().unwrap();
    });
}
