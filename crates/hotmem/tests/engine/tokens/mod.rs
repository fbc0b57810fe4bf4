//! Tests tokens that are passed to another instance, dropped or forgotten.

mod dropped_tokens;
mod foreign_tokens;

use hotmem::geometry::FRAME_SIZE;
use hotmem::*;
use hotmem_testkit::RawRanges as _;
use hotmem_testkit::Validated as _;
use hotmem_testkit::forwarding::{ForwardingMapping, TestMapping};
use hotmem_testkit::{Memory, SECTION, Snapshot, range};
use std::sync::Barrier;
use std::thread;

/// The number of sections of boot memory.
const BOOT_SECTIONS: u64 = 1;
/// The number of sections of all memory.
const SECTIONS: u64 = 5;

/// Returns the section that is online and movable.
fn online() -> PfnRange {
    range(2 * SECTION, SECTION)
}

/// Returns the section that is offline.
fn offline() -> PfnRange {
    range(3 * SECTION, SECTION)
}

/// Returns the section that is absent.
fn absent() -> PfnRange {
    range(4 * SECTION, SECTION)
}

/// A kernel that takes this many frames for page tables.
struct KernelWithTables(u64);

impl TestMapping for KernelWithTables {
    fn tables_needed(&self, _: PfnRange) -> u64 {
        self.0
    }
}

struct Instance<'f> {
    hotplug: Hotplug<'f, OneCpu, ForwardingMapping<KernelWithTables>>,
    region: RegionId,
    allocations: Vec<PfnRange>,
    /// The allocations of `divide_two_pageblocks`, which keep a pageblock of boot memory divided.
    dividing_allocations: Vec<PfnRange>,
}

impl<'f> Instance<'f> {
    fn snapshot(&self) -> Snapshot {
        let used = [&self.allocations[..], &self.dividing_allocations].concat();
        Snapshot::of(&self.hotplug, SECTIONS * SECTION, &used)
    }

    fn frames(&self) -> &'f Frames<OneCpu> {
        self.hotplug.frames()
    }
}

/// Runs `test` on two equal instances. Each has a section in each state, and some online memory in
/// use.
fn with_two_instances(test: impl for<'f> FnOnce(&mut Instance<'f>, &mut Instance<'f>)) {
    let memories = [Memory::new(SECTIONS * SECTION), Memory::new(SECTIONS * SECTION)];
    let frames = [Frames::new(OneCpu), Frames::new(OneCpu)];
    let ram = [BootRange { start: 0, len: Bytes(BOOT_SECTIONS * SECTION * FRAME_SIZE) }];
    let [mut local, mut foreign] = [0, 1].map(|nth| {
        let direct_map = ForwardingMapping::new(memories[nth].direct_map());
        let map = BootMap::from(&ram);
        let mut hotplug = hotmem_testkit::start(&frames[nth], direct_map, map).unwrap();
        let divided = hotmem_testkit::divide_two_pageblocks(&frames[nth]);
        let region = hotplug.announce(range(2 * SECTION, 3 * SECTION)).unwrap();
        hotmem_testkit::make_words(&mut hotplug, range(2 * SECTION, 3 * SECTION));
        for part in [online(), offline()] {
            hotplug.add(part).unwrap();
        }
        hotplug.online(online(), OnlineType::Movable, &mut NoHooks).unwrap();
        let used = frames[nth]
            .alloc_range(AllocRequest::frames(1).movable().at(online().start()))
            .unwrap();
        Instance { hotplug, region, allocations: vec![used], dividing_allocations: divided }
    });
    test(&mut local, &mut foreign);
    for instance in [local, foreign] {
        instance.frames().validated().unwrap();
    }
}

/// Makes a call on `local`, and checks that the call changes neither instance.
fn assert_unchanged<'f, T>(
    local: &mut Instance<'f>,
    foreign: &mut Instance<'f>,
    act: impl FnOnce(&mut Hotplug<'f, OneCpu, ForwardingMapping<KernelWithTables>>) -> T,
) -> T {
    let before = (local.snapshot(), foreign.snapshot());
    let answer = act(&mut local.hotplug);
    assert_eq!((local.snapshot(), foreign.snapshot()), before);
    answer
}

#[test]
fn an_instance_is_started_once() {
    let memory = Memory::new(SECTION);
    let ram = [BootRange { start: 0, len: Bytes(SECTION * FRAME_SIZE) }];
    for _ in 0..50 {
        let (frames, barrier) = (Frames::new(OneCpu), Barrier::new(4));
        let start = || hotmem_testkit::start(&frames, memory.direct_map(), &ram);
        let start_together = || {
            barrier.wait();
            start().is_ok()
        };
        let started = thread::scope(|scope| {
            let threads = [(); 4].map(|()| scope.spawn(start_together));
            threads.map(|thread| thread.join().unwrap())
        });
        assert_eq!(started.into_iter().filter(|&started| started).count(), 1);
        frames.validated().unwrap();
        assert_eq!(start().unwrap_err(), BootError::AlreadyStarted);
    }
}
