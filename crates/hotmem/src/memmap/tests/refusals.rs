//! What does not fit is refused, and nothing is written.

use super::*;

#[test]
fn tails_that_cannot_share_are_refused() {
    let kernel = Kernel::<8, 1, false>::default();
    let small = Compound::new(6).unwrap();
    let refused = Memmap::new(Kind::Generic, small, &kernel).sharing_tails().unwrap_err();
    assert_eq!(refused, ShareError::NothingToShare(small));
    let kernel = Kernel::<9, 1, false>::default();
    let refused = Memmap::new(Kind::Generic, Compound::MIB_2, &kernel).sharing_tails();
    assert_eq!(refused.unwrap_err(), ShareError::DescriptorSize(72));
    let kernel = Kernel::<8, 63, false>::default();
    assert!(Memmap::new(Kind::Generic, Compound::MIB_2, &kernel).sharing_tails().is_ok());
    let kernel = Kernel::<8, 64, false>::default();
    let refused = Memmap::new(Kind::Generic, Compound::MIB_2, &kernel).sharing_tails();
    assert_eq!(refused.unwrap_err(), ShareError::MetadataTails(64));
}

#[test]
fn ranges_and_slots_that_do_not_fit_are_refused_and_nothing_is_written() {
    let kernel = Kernel::<8, 0, false>::default();
    let mut room = Room::<8>::new(16, 0);
    for (start, frames) in [(1, 16), (8, 12), (0, 15)] {
        let range = range(start, frames);
        let compound = Compound::new(3).unwrap();
        let slots =
            Slots::of(range, &mut room.slots()[..usize::try_from(frames).unwrap()]).unwrap();
        let refused = Memmap::new(Kind::Generic, compound, &kernel).describe(slots);
        assert_eq!(refused, Err(DescribeError::NotWholeCompounds { range, compound }));
    }
    assert!(room.seen().iter().all(|words| *words == [UNTOUCHED; 8]));

    let refused = Slots::of(range(0, 15), room.slots()).unwrap_err();
    assert_eq!(refused, SlotsError::Count { range: range(0, 15), slots: 16 });
    let base = core::ptr::NonNull::<[u64; 8]>::dangling();
    let all = range(0, crate::geometry::PFN_LIMIT);
    let odd = core::ptr::NonNull::<u8>::dangling().cast::<[u64; 8]>();
    // SAFETY: nothing is written: one is too large, one is misaligned.
    unsafe {
        let huge = Slots::<[u64; 1 << 25]>::mapped(all, base.cast()).unwrap_err();
        assert_eq!(huge, SlotsError::TooLarge(all));
        assert_eq!(
            Slots::mapped(range(0, 1), odd).unwrap_err(),
            SlotsError::Misaligned(range(0, 1))
        );
    }
}
