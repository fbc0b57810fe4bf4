//! Whatever the stores, kinds, sizes and places: the bytes that one frame after the other gives.

extern crate std;

use super::*;
use crate::addr::{Bytes, Pfn, PfnRange};
use crate::geometry::{FRAME_SIZE, PAGEBLOCK_FRAMES, SECTION_FRAMES};
use core::{array, mem::MaybeUninit};
use proptest::prelude::*;
use std::{boxed::Box, sync::Mutex, vec, vec::Vec};

const UNTOUCHED: u64 = 0x5555_aaaa_5555_aaaa;

/// Descriptors of `N` words, `META` tails with data of their own, and a kernel that reads
/// pageblocks' first ones back, or does not.
#[derive(Default)]
struct Kernel<const N: usize, const META: u64, const READS: bool> {
    traced: bool,
    written: Mutex<Vec<[u64; N]>>,
    pageblocks: Mutex<Vec<(Pfn, [u64; N])>>,
}

const SECTION: SectionField = SectionField::at(3);

impl<const N: usize, const META: u64, const READS: bool> Describe for Kernel<N, META, READS> {
    type Descriptor = [u64; N];
    type Words = [u64; N];
    const METADATA_TAILS: u64 = META;
    const READS_PAGEBLOCKS: bool = READS;

    fn words(&self, frame: &Frame) -> [u64; N] {
        let (role, pfn, head, order) = match frame.role {
            Role::Single(pfn) => (0, Some(pfn), pfn, 0),
            Role::Head { pfn, compound } => (1, Some(pfn), pfn, compound.order()),
            Role::Tail { pfn, head, compound } => (2, Some(pfn), head, compound.order()),
            Role::SharedTail { compound } => (3, None, Pfn::ZERO, compound.order()),
        };
        let number = pfn.unwrap_or_default().number();
        let nth = number - head.number();
        let own_data = if role == 2 && nth <= META { nth << 40 } else { 0 };
        array::from_fn(|i| match i % 8 {
            0 => pfn.map_or(role, |pfn| SECTION.set(role, pfn)),
            1 => 0x8880_0000_0000 + number * FRAME_SIZE,
            2 => u64::from(frame.refcount) << 32 | u64::from(u32::MAX),
            3 => head.number() | own_data,
            4 => 0xdeaf,
            // A 32-bit field below another one: where it wraps, there is no constant step.
            5 => number & 0xffff_ffff | 0x77 << 32,
            6 => order.into(),
            _ => 0,
        })
    }

    fn traced(&self) -> bool {
        self.traced
    }

    fn write(&self, slot: &mut MaybeUninit<[u64; N]>, words: &[u64; N]) {
        self.written.lock().unwrap().push(*words);
        slot.write(*words);
    }

    fn pageblock(&self, pfn: Pfn, slot: &MaybeUninit<[u64; N]>) {
        // SAFETY: it has just been written.
        self.pageblocks.lock().unwrap().push((pfn, unsafe { slot.assume_init() }));
    }
}

/// What each frame's descriptor must be, by the rules alone.
fn expected<B: Describe>(
    by: &B,
    kind: Kind,
    compound: Compound,
    shares: bool,
    range: PfnRange,
) -> Vec<B::Words> {
    let per_frame = FRAME_SIZE / size_of::<B::Descriptor>().max(1) as u64;
    let of_frame = |pfn: Pfn| {
        let head = pfn.align_down(compound.frames());
        let nth = pfn.number() - head.number();
        let role = match nth {
            _ if compound == Compound::SINGLE => Role::Single(pfn),
            0 => Role::Head { pfn, compound },
            _ if shares && nth > B::METADATA_TAILS => Role::SharedTail { compound },
            _ => Role::Tail { pfn, head, compound },
        };
        assert!(per_frame > B::METADATA_TAILS + 1 || !shares);
        let refcount = match (kind, nth) {
            (Kind::Generic | Kind::DeviceDax, 0) => 1,
            _ => 0,
        };
        by.words(&Frame { role, refcount })
    };
    range.chunks(1).map(|one| of_frame(one.start())).collect()
}

fn range(start: u64, frames: u64) -> PfnRange {
    PfnRange::with_len(Pfn::new(start).unwrap(), frames).unwrap()
}

/// Memory for descriptors, which begin so many words after a cache line does, with memory around
/// them that is not to be touched.
struct Room<const N: usize> {
    words: Vec<u64>,
    first: usize,
    frames: usize,
}

impl<const N: usize> Room<N> {
    const MARGIN: usize = 8;

    fn new(frames: u64, after_line: usize) -> Room<N> {
        let frames = usize::try_from(frames).unwrap();
        let words = vec![UNTOUCHED; frames * N + 3 * Self::MARGIN + after_line];
        let to_line = words[Self::MARGIN..].as_ptr().cast::<u8>().align_offset(64) / 8;
        Room { words, first: Self::MARGIN + to_line + after_line, frames }
    }

    fn slots(&mut self) -> &mut [MaybeUninit<[u64; N]>] {
        let start = self.words[self.first..].as_mut_ptr().cast();
        // SAFETY: so many descriptors of words lie in the vector from `first` on.
        unsafe { core::slice::from_raw_parts_mut(start, self.frames) }
    }

    fn seen(&self) -> &[[u64; N]] {
        self.words[self.first..][..self.frames * N].as_chunks().0
    }

    fn is_untouched_around(&self) -> bool {
        let (before, rest) = self.words.split_at(self.first);
        before.iter().chain(&rest[self.frames * N..]).all(|&word| word == UNTOUCHED)
    }
}

fn all_stores() -> impl Iterator<Item = Stores> + Clone {
    // SAFETY: in user space vector registers may be changed.
    unsafe { Stores::all() }
}

/// Describes `range` in every way there is.
fn every_way<const N: usize, const META: u64, const READS: bool>(
    kind: Kind,
    compound: Compound,
    range: PfnRange,
) {
    let kernel = Kernel::<N, META, READS>::default();
    let want = expected(&kernel, kind, compound, false, range);
    let boundaries: Vec<_> = (range.chunks(1).map(PfnRange::start).zip(&want))
        .filter(|(pfn, _)| READS && pfn.is_aligned(PAGEBLOCK_FRAMES as u64))
        .map(|(pfn, words)| (pfn, *words))
        .collect();
    let watched = Kernel::<N, META, READS> { traced: true, ..Kernel::default() };
    let ways = all_stores().map(|stores| (&kernel, stores)).chain([(&watched, Stores::GENERAL)]);
    // Where vectors can store whole lines, and where they cannot.
    for ((kernel, stores), after_line) in ways.flat_map(|way| [(way, 0), (way, 1)]) {
        let mut room = Room::<N>::new(range.frames(), after_line);
        let memmap = Memmap::new(kind, compound, kernel).stores(stores);
        let written = memmap.describe(Slots::of(range, room.slots()).unwrap()).unwrap();
        assert_eq!(written, Bytes(range.frames() * size_of::<[u64; N]>() as u64));
        assert!(
            room.seen() == want && room.is_untouched_around(),
            "{kind:?}, {compound:?}, {range:?}, {stores:?}, watched: {}",
            kernel.traced
        );
        assert_eq!(core::mem::take(&mut *kernel.pageblocks.lock().unwrap()), boundaries);
        if kernel.traced {
            assert!(core::mem::take(&mut *kernel.written.lock().unwrap()) == want);
        }
    }
    assert!(kernel.written.lock().unwrap().is_empty());
}

#[test]
fn every_kind_and_compound() {
    let section = SECTION_FRAMES as u64;
    let kinds = if cfg!(miri) { &Kind::ALL[..2] } else { &Kind::ALL[..] };
    for &kind in kinds {
        // Across the end of a section and from within pageblocks, where compounds permit.
        for order in if cfg!(miri) { [0, 1, 3] } else { [0, 1, 9] } {
            let compound = Compound::new(order).unwrap();
            let (frames, each) = (compound.frames(), compound.frames());
            let near_end = (section - 1) / each * each;
            every_way::<8, 0, false>(kind, compound, range(near_end, frames * 3));
            every_way::<8, 1, true>(kind, compound, range(near_end, frames * 3));
            every_way::<8, 3, true>(kind, compound, range(section * 5, frames * 2));
        }
        every_way::<8, 0, true>(kind, Compound::SINGLE, PfnRange::EMPTY);
    }
}

#[test]
#[cfg(not(miri))]
fn pages_of_a_gibibyte_cross_sections() {
    let compound = Compound::GIB_1;
    every_way::<8, 3, true>(Kind::DeviceDax, compound, range(0, compound.frames()));
    every_way::<8, 0, false>(Kind::FileSystemDax, compound, range(1 << 20, compound.frames()));
}

#[test]
fn descriptors_that_stray_from_the_step_are_written_all_the_same() {
    // Word 5 wraps at frame 2^32.
    for frames in [1, 2, 3, 40] {
        every_way::<8, 0, false>(Kind::Generic, Compound::SINGLE, range((1 << 32) - 1, frames));
        every_way::<6, 0, false>(Kind::Generic, Compound::SINGLE, range((1 << 32) - 20, frames));
    }
}

fn config() -> ProptestConfig {
    let deep = std::env::var_os("HOTMEM_DEEP").is_some();
    let cases = if cfg!(miri) {
        1
    } else if deep {
        5000
    } else {
        100
    };
    ProptestConfig { cases, failure_persistence: None, ..ProptestConfig::default() }
}

fn any_kind() -> impl Strategy<Value = Kind> {
    prop::sample::select(&Kind::ALL[..])
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn any_place_and_length(
        kind in any_kind(),
        order in 0..=7_u32,
        start in prop_oneof![0..1_u64 << 20, (1_u64 << 32) - 500..1 << 32],
        count in 0..600_u64,
    ) {
        let compound = Compound::new(order).unwrap();
        let count = if cfg!(miri) { count % 16 } else { count };
        let range = range(start >> order << order, count.div_ceil(compound.frames()) << order);
        every_way::<1, 0, false>(kind, compound, range);
        every_way::<2, 1, true>(kind, compound, range);
        every_way::<4, 0, true>(kind, compound, range);
        every_way::<5, 1, false>(kind, compound, range);
        every_way::<8, 0, true>(kind, compound, range);
        every_way::<8, 3, false>(kind, compound, range);
        every_way::<9, 1, true>(kind, compound, range);
        every_way::<16, 2, false>(kind, compound, range);
    }

    #[test]
    fn parts_are_the_whole(
        compounds in 1..40_u64, order in 0..=5_u32, parts in 0..9_u64, start in 0..5000_u64,
    ) {
        let kernel = Kernel::<8, 1, true>::default();
        let compound = Compound::new(order).unwrap();
        let range = range(start << order, compounds << order);
        let mut room = Room::<8>::new(range.frames(), 0);
        let memmap = Memmap::new(Kind::Generic, compound, &kernel).stores(Stores::best());
        let slots = Slots::of(range, room.slots()).unwrap();
        let written: u64 = std::thread::scope(|scope| {
            let parts: Vec<_> = slots.parts(parts, compound.frames()).collect();
            let part = |slots| scope.spawn(move || memmap.describe(slots).unwrap().0);
            let threads: Vec<_> = parts.into_iter().map(part).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).sum()
        });
        prop_assert_eq!(written, range.frames() * 64);
        let want = expected(&kernel, Kind::Generic, compound, false, range);
        prop_assert!(room.seen() == want && room.is_untouched_around());
    }
}

#[test]
fn shared_tails_are_written_once_and_what_a_kernel_sees_is_whole() {
    shared_tails::<8, 1>(Compound::new(7).unwrap(), 2);
    if !cfg!(miri) {
        shared_tails::<8, 0>(Compound::MIB_2, 2);
        shared_tails::<8, 3>(Compound::MIB_2, 1);
        shared_tails::<4, 1>(Compound::MIB_2, 2);
        shared_tails::<8, 1>(Compound::GIB_1, 1);
    }
}

/// Describes compounds with shared tails and looks at the map through the pages that a kernel
/// would have mapped.
fn shared_tails<const N: usize, const META: u64>(compound: Compound, compounds: u64) {
    let kernel = Kernel::<N, META, true>::default();
    let range = range(compound.frames() * 6, compound.frames() * compounds);
    let memmap = Memmap::new(Kind::DeviceDax, compound, &kernel).stores(Stores::best());
    let memmap = memmap.sharing_tails().unwrap();
    let size = size_of::<[u64; N]>() as u64;
    let per_page = usize::try_from(FRAME_SIZE / size).unwrap();

    let mut shared = Room::<N>::new(FRAME_SIZE / size, 0);
    memmap.describe_shared_tails(shared.slots());
    let mut map = Room::<N>::new(range.frames(), 0);
    let base = core::ptr::NonNull::from(map.slots()).cast();
    // SAFETY: all of the map is there.
    let slots = unsafe { Slots::mapped(range, base) }.unwrap();
    let written = memmap.describe(slots).unwrap();
    assert_eq!(written.0, memmap.layout().frames_needed(range) * FRAME_SIZE);
    assert_eq!(written, Bytes(compounds * FRAME_SIZE));

    let want = expected(&kernel, Kind::DeviceDax, compound, true, range);
    let base_offset = range.start().number() * size;
    let (mut own, mut pages) = (0, 0);
    for (page, want) in memmap.layout().pages(range).zip(want.chunks(per_page)) {
        let at = usize::try_from((page.offset.0 - base_offset) / size).unwrap();
        let there = &map.seen()[at..at + per_page];
        match page.backing {
            Backing::Own => assert!(there == want),
            Backing::SharedTails => {
                assert!(shared.seen() == want);
                assert!(there.iter().all(|words| *words == [UNTOUCHED; N]));
            }
        }
        own += u64::from(page.backing == Backing::Own);
        pages += 1;
    }
    assert_eq!(own, memmap.layout().frames_needed(range));
    assert_eq!(pages * FRAME_SIZE, range.frames() * size);

    // Every tail finds its head by where it is seen.
    let map_base = 0x7000_0000_0000_usize;
    let address = |pfn: Pfn| map_base + usize::try_from(pfn.number() * size).unwrap();
    for one in range.chunks(1).map(PfnRange::start) {
        let head = one.align_down(compound.frames());
        assert_eq!(memmap.layout().head_address(address(one)), address(head));
    }
}

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

proptest! {
    #![proptest_config(config())]

    #[test]
    fn altmaps_divide_a_device(
        start in 0..1_u64 << 39, frames in 0..1_u64 << 24, reserved in 0..3_u64,
        order in prop::sample::select(vec![0, 9, 18]), share in any::<bool>(),
    ) {
        let kernel = Kernel::<8, 1, false>::default();
        let compound = Compound::new(order).unwrap();
        let memmap = Memmap::new(Kind::DeviceDax, compound, &kernel);
        let memmap = if share { memmap.sharing_tails().unwrap_or(memmap) } else { memmap };
        let (device, layout) = (range(start, frames), memmap.layout());
        let align = compound.frames().max(PAGEBLOCK_FRAMES as u64);
        match Altmap::carve(device, reserved, layout) {
            Ok(altmap) => {
                let (map, data) = (altmap.map(), altmap.data());
                prop_assert_eq!(map.start().number(), start + reserved);
                prop_assert!(device.covers(map) && device.covers(data) && map.end() <= data.start());
                prop_assert!(data.is_aligned(align) && !data.is_empty());
                prop_assert!(layout.frames_needed(data) <= map.frames());
                let own = layout.pages(data).filter(|page| page.backing == Backing::Own);
                if frames < 1 << 18 {
                    prop_assert_eq!(own.count() as u64, layout.frames_needed(data));
                }
                // No whole compound is wasted but for the map's own descriptors.
                let lost = frames - reserved - map.frames() - data.frames();
                prop_assert!(lost < 2 * align);
            }
            Err(AltmapError::NoRoom { map_frames, .. }) => {
                prop_assert!(frames < reserved + map_frames + 2 * align);
            }
        }
    }
}

#[test]
fn a_device_of_100_gb_keeps_its_map_on_itself() {
    let kernel = Kernel::<8, 1, false>::default();
    let device = range(1 << 24, Bytes::gib(100).frames());
    let each = Memmap::new(Kind::DeviceDax, Compound::MIB_2, &kernel);
    let map = Altmap::carve(device, 2, each.layout()).unwrap().map();
    assert_eq!(map.bytes(), Bytes::mib(1600));
    let sharing = each.sharing_tails().unwrap();
    let map = Altmap::carve(device, 2, sharing.layout()).unwrap().map();
    assert_eq!(map.bytes(), Bytes::mib(200));
    let refused = Altmap::carve(range(0, 512 + 7), 0, each.layout()).unwrap_err();
    assert_eq!(
        std::format!("{refused}"),
        "0x0000000000000000-0x0000000000206fff has no room for \
        data behind 9 frames of descriptors"
    );
}

#[test]
fn plain_values_move_between_cpus() {
    fn moves<T: Send>(_: &T) {}
    let kernel = Box::new(Kernel::<8, 0, false>::default());
    let memmap = Memmap::new(Kind::Private, Compound::SINGLE, &*kernel);
    moves(&memmap);
    let (low, high) = Slots::<[u64; 8]>::of(PfnRange::EMPTY, &mut []).unwrap().split_at(Pfn::LIMIT);
    assert!(low.range().is_empty() && high.range().is_empty());
    moves(&low);
}
