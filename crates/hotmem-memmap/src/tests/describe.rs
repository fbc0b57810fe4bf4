//! Checks that the descriptors have the expected bytes with all kinds of stores, for all kinds of
//! memory, sizes of compounds and ranges.

use super::*;
use hotmem_addr::Bytes;
use hotmem_addr::geometry::{PAGEBLOCK_FRAMES, SECTION_FRAMES};
use std::boxed::Box;

#[test]
fn every_kind_and_compound_is_described() {
    let section = SECTION_FRAMES as u64;
    let kinds = if cfg!(miri) { &Kind::ALL[..2] } else { &Kind::ALL[..] };
    for &kind in kinds {
        // The ranges cross the end of a section. Ranges of small compounds start within a pageblock.
        for order in if cfg!(miri) { [0, 1, 3] } else { [0, 1, 9] } {
            let compound = Compound::new(order).unwrap();
            let frames = compound.frames();
            let near_end = (section - 1) / frames * frames;
            check_all_stores::<8, 0, false>(kind, compound, range(near_end, frames * 3));
            check_all_stores::<8, 1, true>(kind, compound, range(near_end, frames * 3));
            check_all_stores::<8, 3, true>(kind, compound, range(section * 5, frames * 2));
        }
        check_all_stores::<8, 0, true>(kind, Compound::SINGLE, PfnRange::EMPTY);
    }
}

#[test]
#[cfg(not(miri))]
fn every_order_up_to_a_gibibyte_is_described() {
    for (order, kind) in (0..Compound::GIB_1.order()).zip(Kind::ALL.into_iter().cycle()) {
        let compound = Compound::new(order).unwrap();
        let frames = compound.frames();
        check_all_stores::<8, 1, true>(kind, compound, range(frames * 5, frames * 2));
    }
    assert_eq!(Compound::new(Compound::GIB_1.order() + 1), None);
}

#[test]
#[cfg(not(miri))]
fn pages_of_a_gibibyte_that_cross_sections_are_described() {
    let compound = Compound::GIB_1;
    check_all_stores::<8, 3, true>(Kind::DeviceDax, compound, range(0, compound.frames()));
    check_all_stores::<8, 0, false>(
        Kind::FileSystemDax,
        compound,
        range(1 << 20, compound.frames()),
    );
}

#[test]
fn descriptors_that_do_not_follow_the_step_are_written_correctly() {
    // Word 5 wraps at frame 2^32.
    for frames in [1, 2, 3, 40] {
        check_all_stores::<8, 0, false>(
            Kind::Generic,
            Compound::SINGLE,
            range((1 << 32) - 1, frames),
        );
        check_all_stores::<6, 0, false>(
            Kind::Generic,
            Compound::SINGLE,
            range((1 << 32) - 20, frames),
        );
    }
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn ranges_of_any_start_and_length_are_described(
        kind in any_kind(),
        order in 0..=7_u32,
        start in prop_oneof![0..1_u64 << 20, (1_u64 << 32) - 500..1 << 32],
        count in 0..600_u64,
    ) {
        let compound = Compound::new(order).unwrap();
        let count = if cfg!(miri) { count % 16 } else { count };
        let range = range(start >> order << order, count.div_ceil(compound.frames()) << order);
        check_all_stores::<1, 0, false>(kind, compound, range);
        check_all_stores::<2, 1, true>(kind, compound, range);
        check_all_stores::<4, 0, true>(kind, compound, range);
        check_all_stores::<5, 1, false>(kind, compound, range);
        check_all_stores::<8, 0, true>(kind, compound, range);
        check_all_stores::<8, 3, false>(kind, compound, range);
        check_all_stores::<9, 1, true>(kind, compound, range);
        check_all_stores::<16, 2, false>(kind, compound, range);
    }

    #[test]
    fn describing_the_parts_describes_the_whole(
        compounds in 1..40_u64, order in 0..=5_u32, parts in 0..9_u64, start in 0..5000_u64,
    ) {
        let kernel = Kernel::<8, 1, true>::default();
        let compound = Compound::new(order).unwrap();
        let range = range(start << order, compounds << order);
        let mut map = GuardedSlots::<8>::new(range.frames(), 0);
        let memmap = Memmap::new(Kind::Generic, compound, &kernel).stores(Stores::best());
        let slots = Slots::of(range, map.slots()).unwrap();
        let written: u64 = std::thread::scope(|scope| {
            let parts: Vec<_> = slots.parts(parts, compound).collect();
            let part = |slots| scope.spawn(move || memmap.describe(slots).unwrap().0);
            let threads: Vec<_> = parts.into_iter().map(part).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).sum()
        });
        prop_assert_eq!(written, range.frames() * 64);
        let expected_words = expected(&kernel, Kind::Generic, compound, false, range);
        prop_assert!(map.written() == expected_words && map.is_untouched_around());
    }
}

#[test]
fn slots_and_memmap_are_send() {
    fn assert_send<T: Send>(_: &T) {}
    let kernel = Box::new(Kernel::<8, 0, false>::default());
    let memmap = Memmap::new(Kind::Private, Compound::SINGLE, &*kernel);
    assert_send(&memmap);
    let (low, high) = Slots::<[u64; 8]>::of(PfnRange::EMPTY, &mut []).unwrap().split_at(Pfn::LIMIT);
    assert!(low.range().is_empty() && high.range().is_empty());
    assert_send(&low);
}

/// Describes `range` with all kinds of stores and with tracing, and checks the descriptors.
fn check_all_stores<const N: usize, const METADATA_TAILS: u64, const READS_BACK: bool>(
    kind: Kind,
    compound: Compound,
    range: PfnRange,
) {
    let kernel = Kernel::<N, METADATA_TAILS, READS_BACK>::default();
    let expected_words = expected(&kernel, kind, compound, false, range);
    let boundaries: Vec<_> = (range.chunks(1).map(PfnRange::start).zip(&expected_words))
        .filter(|(pfn, _)| READS_BACK && pfn.number().is_multiple_of(PAGEBLOCK_FRAMES as u64))
        .map(|(pfn, words)| (pfn, Some(*words)))
        .collect();
    let traced_kernel =
        Kernel::<N, METADATA_TAILS, READS_BACK> { records_writes: true, ..Kernel::default() };
    let kernels_and_stores = all_stores()
        .map(|stores| (&kernel, stores))
        .chain([(&traced_kernel, Stores::GENERAL_REGISTERS)]);
    // Place the slots at a cache line, so that vector stores write whole lines, and one word after.
    for ((kernel, stores), after_line) in kernels_and_stores.flat_map(|pair| [(pair, 0), (pair, 1)])
    {
        let mut map = GuardedSlots::<N>::new(range.frames(), after_line);
        let memmap = Memmap::new(kind, compound, kernel).stores(stores);
        let written = memmap.describe(Slots::of(range, map.slots()).unwrap()).unwrap();
        assert_eq!(written, Bytes(range.frames() * size_of::<[u64; N]>() as u64));
        assert!(
            map.written() == expected_words && map.is_untouched_around(),
            "wrong descriptors: {kind:?}, {compound:?}, {range:?}, {stores:?}, traced: {}",
            kernel.records_writes
        );
        assert_eq!(core::mem::take(&mut *kernel.pageblocks.lock().unwrap()), boundaries);
        if kernel.records_writes {
            assert!(
                core::mem::take(&mut *kernel.written_descriptors.lock().unwrap()) == expected_words
            );
        }
    }
    assert!(kernel.written_descriptors.lock().unwrap().is_empty());
}

fn all_stores() -> impl Iterator<Item = Stores> + Clone {
    // SAFETY: user space may change vector registers.
    unsafe { Stores::all() }
}

fn any_kind() -> impl Strategy<Value = Kind> {
    prop::sample::select(&Kind::ALL[..])
}
