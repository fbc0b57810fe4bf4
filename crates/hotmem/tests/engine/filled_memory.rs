//! Tests that free memory has the contents that the kernel has promised with `set_contents`.

use hotmem::{
    AllocRequest, BootMap, BootRange, Budget, Contents, Frames, Hooks, Hotplug, NoHooks, OneCpu,
    OnlineType, Pfn, PfnRange, Progress, RangeErrorKind,
};
use hotmem_testkit::Raw as _;
use hotmem_testkit::Validated as _;
use hotmem_testkit::forwarding::TestMapping;
use hotmem_testkit::forwarding::{ForwardingMapping, with_kernel};
use hotmem_testkit::{Memory, PAGEBLOCK, REMOTE, SECTION, numbers, range};
use std::sync::atomic::Ordering;

/// The 32-bit word that all free memory is filled with.
const PATTERN: u32 = 0x5aa5_0ff0;
const FILLED: u64 = (PATTERN as u64) << 32 | PATTERN as u64;
const GARBAGE: u64 = 0x0123_4567_89ab_cdef;

/// The number of frames of boot memory.
const BOOT: u64 = 8 * PAGEBLOCK;
/// Memory that may be plugged: two pageblocks of each of two adjacent sections.
const PLUGGED: PfnRange =
    match PfnRange::new(pfn(MIDDLE - 2 * PAGEBLOCK), pfn(MIDDLE + 2 * PAGEBLOCK)) {
        Some(range) => range,
        None => PfnRange::EMPTY,
    };

/// The boundary of the two sections.
const MIDDLE: u64 = 4 * SECTION;

const fn pfn(number: u64) -> Pfn {
    match Pfn::new(number) {
        Some(pfn) => pfn,
        None => Pfn::ZERO,
    }
}

struct Machine<'f> {
    frames: &'f Frames<OneCpu>,
    memory: &'f Memory,
    hotplug: Hotplug<'f, OneCpu, ForwardingMapping<Tables<'f>>>,
}

/// Runs `test` on a machine whose kernel has filled all free memory, and has written garbage to the
/// memory that may be plugged.
fn on_a_machine(test: impl FnOnce(Machine<'_>)) {
    let memory = Memory::new(PLUGGED.end().number());
    let frames = Frames::new(OneCpu);
    let ram = [BootRange { start: 0, len: range(0, BOOT).bytes() }];
    let (mapping, map) = (ForwardingMapping::new(memory.direct_map()), BootMap::from(&ram));
    let mut hotplug = hotmem_testkit::start(&frames, mapping, map).unwrap();
    let all = allocate_all(&frames);
    frames.set_contents(Contents::Filled(PATTERN)).unwrap();
    all.into_iter().for_each(|frame| frames.fill_and_free_range(frame).unwrap());
    numbers(PLUGGED).for_each(|frame| memory.word(frame).store(GARBAGE, Ordering::Relaxed));
    hotplug.announce(PLUGGED).unwrap();
    hotmem_testkit::make_words(&mut hotplug, PLUGGED);
    test(Machine { frames: &frames, memory: &memory, hotplug });
}

fn allocate_all(frames: &Frames<OneCpu>) -> Vec<PfnRange> {
    core::iter::from_fn(|| frames.alloc_range(AllocRequest::frames(1).movable()).ok()).collect()
}

impl Machine<'_> {
    fn plug(&mut self) {
        self.hotplug.add(PLUGGED).unwrap();
        self.hotplug.online(PLUGGED, OnlineType::Movable, &mut NoHooks).unwrap();
    }

    fn unplug(&mut self) {
        let mut offline = self.hotplug.offline(PLUGGED).unwrap();
        let removed = offline.poll(&mut self.hotplug, &mut NoHooks, Budget::UNLIMITED);
        assert_eq!(removed, Progress::Ready(PLUGGED));
        self.hotplug.remove(PLUGGED).unwrap();
    }

    /// Checks that all memory that can be allocated is filled. As a side effect, all sections get
    /// their bitmaps.
    fn check(&self) {
        let all = allocate_all(self.frames);
        for frame in &all {
            let mut words = self.memory.words(frame.start().number());
            assert_eq!(
                words.find(|&word| word != FILLED),
                None,
                "{frame} was free, but not filled"
            );
        }
        all.into_iter().for_each(|frame| self.frames.fill_and_free_range(frame).unwrap());
        self.frames.validated().unwrap();
    }
}

#[test]
fn memory_that_comes_online_is_filled() {
    on_a_machine(|mut machine| {
        machine.plug();
        machine.check();
    });
}

#[test]
fn bitmaps_that_are_freed_are_filled() {
    on_a_machine(|mut machine| {
        for _ in 0..2 {
            machine.plug();
            machine.check();
            machine.unplug();
            machine.check();
        }
    });
}

#[test]
fn bitmaps_in_memory_that_stays_online_are_filled_when_they_are_freed() {
    on_a_machine(|mut machine| {
        // Boot memory is full, so the bitmaps of each section lie in the section.
        let full = allocate_all(machine.frames);
        machine.plug();
        let one = |at| AllocRequest::frames(1).movable().at(pfn(at));
        let below = machine.frames.alloc_range(one(MIDDLE - 2 * PAGEBLOCK)).unwrap();
        machine.frames.fill_and_free_range(below).unwrap();
        let above = machine.frames.alloc_range(one(MIDDLE)).unwrap();
        // The lower section is drained and loses its bitmaps, and the upper one is in use.
        let token = machine.frames.isolate(PLUGGED).unwrap();
        let (token, _) = machine.hotplug.take_offline(token, &mut NoHooks).unwrap_err();
        token.release();
        machine.frames.fill_and_free_range(above).unwrap();
        full.into_iter().for_each(|frame| machine.frames.fill_and_free_range(frame).unwrap());
        machine.check();
    });
}

/// A kernel that writes garbage to its page tables, and frees them without filling them.
struct Tables<'f> {
    memory: &'f Memory,
    tables: Vec<Pfn>,
}

impl TestMapping for Tables<'_> {
    fn tables_needed(&self, _: PfnRange) -> u64 {
        3
    }

    fn map(&mut self, _: PfnRange, take: &mut dyn FnMut() -> Option<Pfn>) {
        for table in [take(), take()].into_iter().flatten() {
            self.memory.word(table.number()).store(GARBAGE, Ordering::Relaxed);
            self.tables.push(table);
        }
    }

    fn release_tables(&mut self, _: PfnRange, free: &mut dyn FnMut(Pfn)) {
        self.tables.drain(..).for_each(free);
    }
}

impl Hooks for Tables<'_> {}

#[test]
fn frames_that_mappings_free_are_filled() {
    on_a_machine(|mut machine| {
        let mut tables = Tables { memory: machine.memory, tables: Vec::new() };
        with_kernel(&mut machine.hotplug, &mut tables, |hotplug, _| hotplug.add(PLUGGED)).unwrap();
        machine.hotplug.online(PLUGGED, OnlineType::Movable, &mut NoHooks).unwrap();
        assert_eq!(tables.tables.len(), 2);
        let mut offline = machine.hotplug.offline(PLUGGED).unwrap();
        let removed = offline.poll(&mut machine.hotplug, &mut NoHooks, Budget::UNLIMITED);
        assert_eq!(removed, Progress::Ready(PLUGGED));
        with_kernel(&mut machine.hotplug, &mut tables, |hotplug, _| hotplug.remove(PLUGGED))
            .unwrap();
        assert_eq!(tables.tables, []);
        machine.check();
    });
}

#[test]
fn refused_frames_are_not_written() {
    on_a_machine(|machine| {
        let used = machine.frames.alloc_range(AllocRequest::frames(2)).unwrap();
        let first = range(used.start().number(), 1);
        machine.frames.fill_and_free_range(first).unwrap();
        let word = |range: PfnRange| machine.memory.word(range.end().number() - 1);
        word(used).store(GARBAGE, Ordering::Relaxed);
        let refused = machine.frames.fill_and_free_range(used).unwrap_err();
        assert_eq!(refused.kind, RangeErrorKind::NotAllocated);
        assert_eq!(word(used).load(Ordering::Relaxed), GARBAGE);
        // This memory is not present, so a write would fault.
        let foreign = machine.frames.fill_and_free_range(range(REMOTE, 1)).unwrap_err();
        assert_eq!(foreign.kind, RangeErrorKind::Foreign);
        let empty = machine.frames.fill_and_free_range(range(0, 0)).unwrap_err();
        assert_eq!(empty.kind, RangeErrorKind::Empty);
    });
}
