//! Tests that free memory has the contents that the kernel has promised with `set_contents`.

use hotmem::{
    AllocRequest, BootMap, BootRange, Budget, Contents, Frames, Hooks, Hotplug, NoHooks, OneCpu,
    OnlineType, Pfn, PfnRange, Progress, RangeErrorKind,
};
use hotmem_testkit::RawRanges as _;
use hotmem_testkit::Validated as _;
use hotmem_testkit::forwarding::{ForwardingMapping, Free, TestMapping, with_kernel};
use hotmem_testkit::{DISTANT_PFN, Memory, PAGEBLOCK, SECTION, numbers, range};
use std::sync::atomic::Ordering;

/// The 32-bit word that all free memory is filled with.
const FILL_WORD: u32 = 0x5aa5_0ff0;
const TWO_FILL_WORDS: u64 = (FILL_WORD as u64) << 32 | FILL_WORD as u64;
const GARBAGE: u64 = 0x0123_4567_89ab_cdef;

/// The number of frames of boot memory.
const BOOT_FRAMES: u64 = 8 * PAGEBLOCK;
/// Memory that may be plugged: two pageblocks of each of two adjacent sections.
const PLUGGED: PfnRange = match PfnRange::new(
    pfn(SECTION_BOUNDARY - 2 * PAGEBLOCK),
    pfn(SECTION_BOUNDARY + 2 * PAGEBLOCK),
) {
    Some(range) => range,
    None => PfnRange::EMPTY,
};

/// The frame at which the two sections meet.
const SECTION_BOUNDARY: u64 = 4 * SECTION;

const fn pfn(number: u64) -> Pfn {
    match Pfn::new(number) {
        Some(pfn) => pfn,
        None => Pfn::ZERO,
    }
}

struct Instance<'f> {
    frames: &'f Frames<OneCpu>,
    memory: &'f Memory,
    hotplug: Hotplug<'f, OneCpu, ForwardingMapping<Tables<'f>>>,
}

/// Runs `test` on an instance whose kernel has filled all free memory, and has written garbage to
/// the memory that may be plugged.
fn with_instance(test: impl FnOnce(Instance<'_>)) {
    let memory = Memory::new(PLUGGED.end().number());
    let frames = Frames::new(OneCpu);
    let ram = [BootRange { start: 0, len: range(0, BOOT_FRAMES).bytes() }];
    let (mapping, map) = (ForwardingMapping::new(memory.direct_map()), BootMap::from(&ram));
    let mut hotplug = hotmem_testkit::start(&frames, mapping, map).unwrap();
    let all = allocate_all(&frames);
    frames.set_contents(Contents::Filled(FILL_WORD)).unwrap();
    all.into_iter().for_each(|frame| frames.fill_and_free_range(frame).unwrap());
    numbers(PLUGGED).for_each(|frame| memory.word(frame).store(GARBAGE, Ordering::Relaxed));
    hotplug.announce(PLUGGED).unwrap();
    hotmem_testkit::make_words(&mut hotplug, PLUGGED);
    test(Instance { frames: &frames, memory: &memory, hotplug });
}

fn allocate_all(frames: &Frames<OneCpu>) -> Vec<PfnRange> {
    core::iter::from_fn(|| frames.alloc_range(AllocRequest::frames(1).movable()).ok()).collect()
}

impl Instance<'_> {
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
                words.find(|&word| word != TWO_FILL_WORDS),
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
    with_instance(|mut instance| {
        instance.plug();
        instance.check();
    });
}

#[test]
fn bitmaps_that_are_freed_are_filled() {
    with_instance(|mut instance| {
        for _ in 0..2 {
            instance.plug();
            instance.check();
            instance.unplug();
            instance.check();
        }
    });
}

#[test]
fn bitmaps_in_memory_that_stays_online_are_filled_when_they_are_freed() {
    with_instance(|mut instance| {
        // Boot memory is full, so the bitmaps of each section lie in the section.
        let full = allocate_all(instance.frames);
        instance.plug();
        let one_at = |frame| AllocRequest::frames(1).movable().at(pfn(frame));
        let below = instance.frames.alloc_range(one_at(SECTION_BOUNDARY - 2 * PAGEBLOCK)).unwrap();
        instance.frames.fill_and_free_range(below).unwrap();
        let above = instance.frames.alloc_range(one_at(SECTION_BOUNDARY)).unwrap();
        // The lower section is drained and loses its bitmaps, and the upper one is in use.
        let token = instance.frames.isolate(PLUGGED).unwrap();
        let (token, _) = instance.hotplug.take_offline(token, &mut NoHooks).unwrap_err();
        token.release();
        instance.frames.fill_and_free_range(above).unwrap();
        full.into_iter().for_each(|frame| instance.frames.fill_and_free_range(frame).unwrap());
        instance.check();
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

    fn release_tables(&mut self, _: PfnRange, free: &mut Free<'_>) {
        self.tables.drain(..).for_each(|table| free(table).unwrap());
    }
}

impl Hooks for Tables<'_> {}

#[test]
fn frames_that_mappings_free_are_filled() {
    with_instance(|mut instance| {
        let mut tables = Tables { memory: instance.memory, tables: Vec::new() };
        with_kernel(&mut instance.hotplug, &mut tables, |hotplug, _| hotplug.add(PLUGGED)).unwrap();
        instance.hotplug.online(PLUGGED, OnlineType::Movable, &mut NoHooks).unwrap();
        assert_eq!(tables.tables.len(), 2);
        let mut offline = instance.hotplug.offline(PLUGGED).unwrap();
        let removed = offline.poll(&mut instance.hotplug, &mut NoHooks, Budget::UNLIMITED);
        assert_eq!(removed, Progress::Ready(PLUGGED));
        with_kernel(&mut instance.hotplug, &mut tables, |hotplug, _| hotplug.remove(PLUGGED))
            .unwrap();
        assert_eq!(tables.tables, []);
        instance.check();
    });
}

#[test]
fn refused_frames_are_not_written() {
    with_instance(|instance| {
        let used = instance.frames.alloc_range(AllocRequest::frames(2)).unwrap();
        let first = range(used.start().number(), 1);
        instance.frames.fill_and_free_range(first).unwrap();
        let word = |range: PfnRange| instance.memory.word(range.end().number() - 1);
        word(used).store(GARBAGE, Ordering::Relaxed);
        let refused = instance.frames.fill_and_free_range(used).unwrap_err();
        assert_eq!(refused.kind, RangeErrorKind::NotAllocated);
        assert_eq!(word(used).load(Ordering::Relaxed), GARBAGE);
        // This memory is not present, so a write would fault.
        let foreign = instance.frames.fill_and_free_range(range(DISTANT_PFN, 1)).unwrap_err();
        assert_eq!(foreign.kind, RangeErrorKind::Foreign);
        let empty = instance.frames.fill_and_free_range(range(0, 0)).unwrap_err();
        assert_eq!(empty.kind, RangeErrorKind::Empty);
    });
}
