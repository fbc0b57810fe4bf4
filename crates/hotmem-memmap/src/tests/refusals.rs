//! Tests that slots and ranges that do not fit are refused, and that nothing is written then.

use super::*;

#[test]
fn tails_that_cannot_share_are_refused() {
    let kernel = Kernel::<8, 1, false>::default();
    let small = Compound::new(6).unwrap();
    let refused = Memmap::new(Kind::Generic, small, &kernel).sharing_tails().unwrap_err();
    assert_eq!(refused, ShareError::NothingToShare(small));
    let kernel = Kernel::<9, 1, false>::default();
    let refused = Memmap::new(Kind::Generic, Compound::MIB_2, &kernel).sharing_tails();
    assert_eq!(refused.unwrap_err(), ShareError::BadDescriptorSize(72));
    let kernel = Kernel::<8, 63, false>::default();
    assert!(Memmap::new(Kind::Generic, Compound::MIB_2, &kernel).sharing_tails().is_ok());
    let kernel = Kernel::<8, 64, false>::default();
    let refused = Memmap::new(Kind::Generic, Compound::MIB_2, &kernel).sharing_tails();
    assert_eq!(refused.unwrap_err(), ShareError::MetadataTails(64));
}

#[test]
fn slots_that_are_only_partly_mapped_are_refused_by_other_layouts() {
    let kernel = Kernel::<8, 1, false>::default();
    let unshared = Memmap::new(Kind::Generic, Compound::MIB_2, &kernel);
    let sharing = unshared.sharing_tails().unwrap();
    let larger = Memmap::new(Kind::Generic, Compound::new(10).unwrap(), &kernel);
    let range = range(0, 2 * Compound::MIB_2.frames());
    let mut map = GuardedSlots::<8>::new(range.frames(), 0);
    let base = core::ptr::NonNull::from(map.slots()).cast();
    for memmap in [unshared, larger, larger.sharing_tails().unwrap()] {
        // SAFETY: all slots of `map` may be written, and nothing else uses them.
        let slots = unsafe { Slots::mapped(range, base, sharing.layout()) }.unwrap();
        let (empty, all) = slots.split_at(Pfn::ZERO);
        let refused = DescribeError::OtherLayout(range);
        assert_eq!(memmap.describe(all), Err(refused));
        assert_eq!(memmap.describe(empty), Err(DescribeError::OtherLayout(PfnRange::EMPTY)));
    }
    assert!(map.written().iter().all(|words| *words == [UNTOUCHED; 8]));
    // If all slots are mapped, they may be described in any layout.
    for memmap in [unshared, sharing, larger] {
        let base = core::ptr::NonNull::from(map.slots()).cast();
        // SAFETY: all slots of `map` may be written, and nothing else uses them.
        let slots = unsafe { Slots::mapped(range, base, unshared.layout()) }.unwrap();
        assert!(memmap.describe(slots).is_ok());
    }
}

#[test]
fn ranges_and_slots_that_do_not_fit_are_refused_and_nothing_is_written() {
    let kernel = Kernel::<8, 0, false>::default();
    let mut map = GuardedSlots::<8>::new(16, 0);
    for (start, frames) in [(1, 16), (8, 12), (0, 15)] {
        let range = range(start, frames);
        let compound = Compound::new(3).unwrap();
        let slots = Slots::of(range, &mut map.slots()[..usize::try_from(frames).unwrap()]).unwrap();
        let refused = Memmap::new(Kind::Generic, compound, &kernel).describe(slots);
        assert_eq!(refused, Err(DescribeError::NotWholeCompounds { range, compound }));
    }
    assert!(map.written().iter().all(|words| *words == [UNTOUCHED; 8]));

    let refused = Slots::of(range(0, 15), map.slots()).unwrap_err();
    assert_eq!(refused, SlotsError::Count { range: range(0, 15), slots: 16 });
    let base = core::ptr::NonNull::<[u64; 8]>::dangling();
    let all = range(0, hotmem_addr::geometry::PFN_LIMIT);
    let layout = Memmap::new(Kind::Generic, Compound::SINGLE, &kernel);
    let layout = layout.layout();
    let misaligned = core::ptr::NonNull::<u8>::dangling().cast::<[u64; 8]>();
    // SAFETY: both calls fail, so no slot is written.
    unsafe {
        let huge = Slots::<[u64; 1 << 25]>::mapped(all, base.cast(), layout).unwrap_err();
        assert_eq!(huge, SlotsError::TooLarge(all));
        assert_eq!(
            Slots::mapped(range(0, 1), misaligned, layout).unwrap_err(),
            SlotsError::Misaligned(range(0, 1))
        );
    }
}
