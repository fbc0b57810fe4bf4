//! Tests the adapters on a machine in this process.

use hotmem::{
    AllocError, AllocRequest, BadRequest, BootMap, BootRange, Bytes, Frames, Hooks, NoHooks,
    OneCpu, Pfn, PfnRange, RangeError, RangeErrorKind, Veto, Zone,
};
use hotmem_port::{
    AllocRetry, BootRanges, ConfigurablePlatform, LateMemoryError, LinearMap, TableFrames,
    TooManyRanges, add_late_memory,
};
use hotmem_testkit::{Memory, PAGEBLOCK, SECTION, Validated as _, boot, range, start};
use proptest::prelude::*;

proptest! {
    #![proptest_config(ProptestConfig {
        cases: if cfg!(miri) { 4 } else { 256 },
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    /// `ram.without(&others)` has exactly the bytes of `ram` that are not in `others`.
    #[test]
    fn without_returns_the_bytes_that_are_not_in_others(
        all in proptest::collection::vec((0_usize..60, 0_usize..12), 0..6),
        others in proptest::collection::vec((0_usize..60, 0_usize..12), 0..6)
    ) {
        let (mut expected, mut ranges) = ([false; 80], [BootRanges::<12>::new(); 2]);
        for (index, list, is_expected) in [(0, &all, true), (1, &others, false)] {
            for &(start, len) in list {
                ranges[index].add(start as u64..(start + len) as u64).unwrap();
                expected[start..start + len].fill(is_expected);
            }
        }
        let parts = ranges[0].without(&ranges[1]).unwrap();
        let actual: Vec<_> = (0..80).map(|byte| contains(&parts, byte)).collect();
        prop_assert_eq!(&actual[..], &expected[..]);
    }

    /// The ranges contain exactly the bytes that were added, each byte once.
    #[test]
    fn ranges_are_the_union_of_the_added_ranges(
        added in proptest::collection::vec((0_usize..60, 0_usize..12), 0..20)
    ) {
        let mut ranges = BootRanges::<6>::new();
        let mut expected = [false; 80];
        for (start, len) in added {
            let bytes = start..start + len;
            let range = start as u64..(start + len) as u64;
            let before = ranges;
            match ranges.add(range.clone()) {
                Ok(()) => bytes.for_each(|byte| expected[byte] = true),
                Err(TooManyRanges(refused)) => {
                    prop_assert_eq!(refused, BootRange::from(range));
                    prop_assert_eq!(before.as_slice().len(), 6);
                    prop_assert_eq!(before.as_slice(), ranges.as_slice());
                }
            }
            let mut contained = [false; 80];
            for &BootRange { start, len } in ranges.as_slice() {
                for (byte, contained) in (0..).zip(&mut contained) {
                    if (start..start + len.0).contains(&byte) {
                        prop_assert!(!*contained, "byte {} is in two ranges", byte);
                        *contained = true;
                    }
                }
                // No range ends where this one starts, because ranges that touch are merged.
                prop_assert!(start == 0 || !contains(&ranges, start - 1));
            }
            prop_assert_eq!(contained, expected);
        }
    }
}

fn contains<const N: usize>(ranges: &BootRanges<N>, byte: u64) -> bool {
    ranges.as_slice().iter().any(|range| (range.start..range.start + range.len.0).contains(&byte))
}

#[test]
fn ranges_of_boot_memory_are_added_one_by_one() {
    let mut ram = BootRanges::<4>::new();
    ram.add(0x1000..0x9_f000).unwrap();
    ram.add(0x10_0000..0x20_0000).unwrap();
    // The kernel's image ends where the next range starts: at a multiple of 4 KiB that is no multiple
    // of 2 MiB.
    ram.add(0x26_4000..0x7fe_0000).unwrap();
    assert!(!ram.is_empty());
    let memory = Memory::new(SECTION);
    let frames = Frames::new(ConfigurablePlatform::new());
    let _hotplug = start(&frames, memory.direct_map(), ram.as_slice()).unwrap();
    let added_frames = 0x9e + 0x100 + (0x7fe0 - 0x264);
    let counts = frames.counts();
    assert_eq!(
        counts.free,
        added_frames - frames.metadata().map(|m| m.frames.frames()).sum::<u64>()
    );
    for outside in [0, 0x9f, 0x200, 0x263, 0x7fe0] {
        let refused =
            frames.alloc(AllocRequest::frames(1).at(Pfn::new(outside).unwrap())).map(drop);
        assert!(matches!(refused, Err(AllocError::NotFree(_))), "{outside:#x}");
    }
    frames.validated().unwrap();
}

#[test]
fn a_range_that_wraps_is_cut_off_at_the_last_address() {
    let mut ram = BootRanges::<1>::new();
    ram.add(BootRange { start: u64::MAX - 1, len: Bytes(5) }).unwrap();
    ram.add(BootRange { start: u64::MAX - 3, len: Bytes(2) }).unwrap();
    assert_eq!(ram.as_slice(), [BootRange { start: u64::MAX - 3, len: Bytes(3) }]);
    let error = ram.add(0..1).unwrap_err();
    assert_eq!(error.to_string(), "no space for another range of boot memory: 1B from 0x0");
}

#[test]
fn an_allocation_returns_memory_or_the_reason() {
    let memory = Memory::new(SECTION);
    let frames = Frames::new(ConfigurablePlatform::new());
    let _hotplug = boot(&frames, &memory, SECTION);
    let page = frames.alloc_retry(AllocRequest::frames(1)).unwrap();
    assert_eq!(page.range().frames(), 1);
    let error = |request| frames.alloc_retry(request).map(drop).unwrap_err();
    assert_eq!(error(AllocRequest::frames(2 * SECTION)), AllocError::OutOfMemory);
    assert_eq!(error(AllocRequest::frames(0)), AllocError::Bad(BadRequest::Empty));
    let taken = error(AllocRequest::frames(1).at(page.range().start()));
    assert!(matches!(taken, AllocError::NotFree(_)), "{taken:?}");
    drop(page);
}

/// Seven of 20 frames become page tables. The other 13 are freed.
#[test]
fn table_frames_that_are_not_used_are_freed() {
    let memory = Memory::new(SECTION);
    let frames = Frames::new(ConfigurablePlatform::new());
    let _hotplug = boot(&frames, &memory, SECTION);
    // Divide a pageblock first, because the engine then allocates a frame for bitmaps.
    drop(frames.alloc(AllocRequest::frames(20)).unwrap());
    let free = frames.counts().free;
    let map = LinearMap::new(memory.start());
    let mut table_frames = TableFrames::new(&frames, map);
    let mut frames_for_tables =
        frames.alloc(AllocRequest::frames(20)).unwrap().into_raw().chunks(1).map(PfnRange::start);
    // SAFETY: the frames were allocated above, are mapped by `map`, and nothing else uses them.
    unsafe { table_frames.add_frames(&mut || frames_for_tables.next()) };
    let mut tables: Vec<Pfn> = (0..7).map(|_| table_frames.take().unwrap()).collect();
    tables.sort_unstable();
    tables.dedup();
    assert_eq!(tables.len(), 7);
    assert_eq!((table_frames.free_rest(), table_frames.take()), (13, None));
    assert_eq!(frames.counts().free, free - 7);
    for table in tables {
        // SAFETY: `take` has returned the frame, and nothing uses it.
        unsafe { frames.free_raw(range(table.number(), 1)) }.unwrap();
    }
    assert_eq!(frames.counts().free, free);
}

#[test]
fn a_linear_map_converts_addresses_to_frames() {
    let memory = Memory::new(16);
    let map = LinearMap::new(memory.start());
    let third_frame = map.pointer(range(3, 1).start());
    assert_eq!(map.frames(third_frame, 1), Some(range(3, 1)));
    assert_eq!(map.frames(third_frame.wrapping_add(1), 4096), Some(range(3, 2)));
    assert_eq!(map.frames(third_frame, 0), Some(range(3, 0)));
    assert_eq!(map.frames(map.base().wrapping_sub(1), 1), None);
}

#[test]
fn a_configurable_platform_calls_its_functions_after_they_are_set() {
    use hotmem::Platform;
    use std::sync::atomic::{AtomicUsize, Ordering};
    static WOKEN: AtomicUsize = AtomicUsize::new(0);
    let platform = ConfigurablePlatform::new();
    platform.wake_reporter();
    assert_eq!((platform.cpu(), WOKEN.load(Ordering::Relaxed)), (0, 0));
    platform.set_cpu(|| 5);
    platform.set_wake_reporter(|| {
        WOKEN.fetch_add(1, Ordering::Relaxed);
    });
    platform.wake_reporter();
    assert_eq!((platform.cpu(), WOKEN.load(Ordering::Relaxed)), (5, 1));
}

/// Tests [`LateMapping`](hotmem_port::LateMapping) with a mapper that takes two page tables from
/// `take_table` when it first maps memory.
mod late_mapping {
    use super::*;
    use hotmem::{AddError, Hotplug, NoHooks, Veto};
    use hotmem_port::{LateMapping, Mapper};
    use hotmem_testkit::PAGEBLOCK;
    use std::sync::Mutex;

    type Lock = spin::mutex::SpinMutex<()>;
    type Mapping = LateMapping<'static, ConfigurablePlatform, Lock>;

    static MAPPING: Mutex<Option<&'static Mapping>> = Mutex::new(None);
    static MAPPED: Mutex<Vec<PfnRange>> = Mutex::new(Vec::new());
    static TABLES: Mutex<Vec<Pfn>> = Mutex::new(Vec::new());

    const LAST_PAGEBLOCK_VETO: Veto = Veto("the last pageblock cannot be mapped");

    fn can_map(range: PfnRange) -> Result<(), Veto> {
        let last = PfnRange::with_len(Pfn::new(SECTION - PAGEBLOCK).unwrap(), PAGEBLOCK).unwrap();
        if range.intersection(last).is_empty() { Ok(()) } else { Err(LAST_PAGEBLOCK_VETO) }
    }

    fn map(range: PfnRange) {
        let mapping = MAPPING.lock().unwrap().unwrap();
        let mut tables = TABLES.lock().unwrap();
        if tables.is_empty() {
            tables.extend([(); 2].map(|()| mapping.take_table().unwrap()));
        }
        MAPPED.lock().unwrap().push(range);
    }

    fn unmap(range: PfnRange) {
        MAPPED.lock().unwrap().retain(|mapped| *mapped != range);
    }

    #[test]
    fn a_mapper_takes_its_tables_from_the_table_frames() {
        let memory = Box::leak(Box::new(Memory::new(SECTION)));
        let frames = Box::leak(Box::new(Frames::new(ConfigurablePlatform::new())));
        // SAFETY: all of `memory` is mapped from the start and never dropped, and nothing else uses it.
        let mapping =
            unsafe { Mapping::new(frames, LinearMap::new(memory.start()), range(0, SECTION)) };
        let mapping: &'static Mapping = Box::leak(Box::new(mapping));
        *MAPPING.lock().unwrap() = Some(mapping);
        let half = SECTION / 2;
        let mut ram = BootRanges::<1>::new();
        ram.add(0..half * 4096).unwrap();
        let mut hotplug: Hotplug<'_, _, _> = start(frames, mapping, ram.as_slice()).unwrap();
        let hotplugged = range(half, half);
        hotplug.announce(hotplugged).unwrap();

        // Before the mapper is set, memory is added without it and takes no frames for page tables,
        // because boot code has mapped the memory.
        let (first, rest) = hotplugged.split_at(range(half + PAGEBLOCK, 1).start());
        let free = frames.counts().free;
        hotplug.add(first).unwrap();
        assert_eq!(frames.counts().free, free);
        assert_eq!((MAPPED.lock().unwrap().len(), mapping.take_table()), (0, None));

        // SAFETY: all memory of the test is mapped at all times.
        unsafe {
            mapping.set_mapper(Mapper {
                can_map,
                map,
                unmap,
                unmap_frees_tables: false,
                tables_needed: |_| 5,
            })
        };
        // The mapper refuses the last pageblock.
        let (rest, last) = rest.split_at(range(SECTION - PAGEBLOCK, 1).start());
        assert_eq!(
            hotplug.add(last),
            Err(AddError::Range(RangeError {
                range: last,
                kind: RangeErrorKind::Vetoed(LAST_PAGEBLOCK_VETO)
            }))
        );
        assert_eq!(*MAPPED.lock().unwrap(), []);
        hotplug.add(rest).unwrap();
        assert_eq!(*MAPPED.lock().unwrap(), [rest]);
        // Two of five frames became page tables, and the other three are free again.
        assert_eq!((frames.counts().free, mapping.take_table()), (free - 2, None));

        let removal = hotplug.prepare_remove(rest).unwrap();
        assert_eq!(*MAPPED.lock().unwrap(), []);
        // The device refuses to take the memory back, so it is mapped again.
        hotplug.abandon_remove(removal, &mut NoHooks);
        assert_eq!(*MAPPED.lock().unwrap(), [rest]);
    }
}

#[test]
fn an_irq_lock_disables_interrupts_while_it_is_locked() {
    use hotmem_port::lock_api::Mutex;
    use hotmem_port::{Interrupts, IrqLock};
    use std::cell::Cell;

    thread_local!(static ENABLED: Cell<bool> = const { Cell::new(true) });
    struct Cpu;
    impl Interrupts for Cpu {
        type State = bool;

        fn disable() -> bool {
            ENABLED.replace(false)
        }

        fn restore(state: bool) {
            ENABLED.set(state);
        }
    }

    let count: Mutex<IrqLock<Cpu>, u32> = Mutex::new(0);
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                for _ in 0..1000 {
                    let mut count = count.lock();
                    assert!(!ENABLED.get());
                    *count += 1;
                    drop(count);
                    assert!(ENABLED.get());
                }
            });
        }
    });
    let guard = count.lock();
    assert_eq!(*guard, 3000);
    assert!(count.try_lock().is_none() && !ENABLED.get());
    drop(guard);
    assert!(ENABLED.get());
}

#[test]
#[cfg_attr(debug_assertions, should_panic(expected = "an invariant does not hold"))]
fn a_frame_that_cannot_be_freed_violates_an_invariant() {
    let memory = Memory::new(SECTION);
    let frames = Frames::new(OneCpu);
    let _hotplug = boot(&frames, &memory, SECTION);
    let frame = frames.alloc(AllocRequest::frames(1)).unwrap().into_raw();
    let mut table_frames = TableFrames::new(&frames, LinearMap::new(memory.start()));
    let mut first = Some(frame.start());
    // SAFETY: the frame was allocated, and nothing else uses it.
    unsafe { table_frames.add_frames(&mut || first.take()) };
    // SAFETY: the frame was allocated above. Freeing it breaks the promise to `add_frames`, on purpose.
    unsafe { frames.free_raw(frame) }.unwrap();
    let before = hotmem::violated_invariants().count;
    assert_eq!(table_frames.free_rest(), 0);
    assert_eq!(hotmem::violated_invariants().count, before + 1);
}

#[test]
fn memory_that_comes_after_the_start_is_added() {
    let memory = Memory::new(3 * SECTION);
    let frames = Frames::new(OneCpu);
    let ram = [BootRange { start: 0, len: range(0, SECTION).bytes() }];
    let reserved = [BootRange {
        start: range(SECTION / 2, 1).start().phys_addr(),
        len: range(0, SECTION / 2).bytes(),
    }];
    let map = BootMap { reserved: &reserved, ..BootMap::from(&ram[..]) };
    let mut hotplug = start(&frames, memory.mapping(), map).unwrap();
    // Boot reserved the upper half of its memory, and did not know the memory above that.
    let reserved = range(SECTION / 2 + 3, 100);
    let unknown = range(SECTION + 1, 2 * PAGEBLOCK);
    let whole = range(SECTION + PAGEBLOCK, PAGEBLOCK);
    for (late, added) in [(reserved, reserved), (unknown, whole)] {
        let before = frames.counts().free;
        // SAFETY: the test does not use the memory.
        assert_eq!(unsafe { add_late_memory(&mut hotplug, late, &mut NoHooks) }, Ok(added));
        assert_eq!(frames.counts().free, before + added.frames());
        frames.validated().unwrap();
    }
    // SAFETY: as above.
    let twice = unsafe { add_late_memory(&mut hotplug, reserved, &mut NoHooks) };
    assert!(matches!(twice, Err(LateMemoryError::Range(_))), "{twice:?}");
    // SAFETY: as above.
    let little = unsafe { add_late_memory(&mut hotplug, range(2 * SECTION + 1, 5), &mut NoHooks) };
    assert_eq!(little.map(PfnRange::is_empty), Ok(true));
}

#[test]
fn late_memory_that_is_refused_is_unknown_again_and_can_be_added_later() {
    struct VetoOnce(bool);
    impl Hooks for VetoOnce {
        fn going_online(&mut self, _: PfnRange, _: Zone) -> Result<(), Veto> {
            if std::mem::take(&mut self.0) { Err(Veto("not now")) } else { Ok(()) }
        }
    }
    let memory = Memory::new(2 * SECTION);
    let frames = Frames::new(OneCpu);
    let mut hotplug = boot(&frames, &memory, SECTION);
    let (late, mut hooks) = (range(SECTION, SECTION), VetoOnce(true));
    let before = frames.counts();
    let regions = hotplug.regions().count();
    // SAFETY: the test does not use the memory.
    let refused = unsafe { add_late_memory(&mut hotplug, late, &mut hooks) };
    let vetoed = RangeError { range: late, kind: RangeErrorKind::Vetoed(Veto("not now")) };
    assert_eq!(refused, Err(LateMemoryError::Range(vetoed)));
    assert_eq!((frames.counts().present, hotplug.regions().count()), (before.present, regions));
    frames.validated().unwrap();
    // SAFETY: as above.
    assert_eq!(unsafe { add_late_memory(&mut hotplug, late, &mut hooks) }, Ok(late));
    assert_eq!(frames.counts().online, before.online + SECTION);
}
