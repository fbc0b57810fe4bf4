//! Tests pages of tails that several compounds share.

use super::*;
use hotmem_addr::Bytes;
use hotmem_addr::geometry::PAGEBLOCK_FRAMES;

#[test]
fn shared_tails_are_written_once_and_every_page_has_the_expected_descriptors() {
    for traced in [false, true] {
        check_shared_tails::<8, 1>(Compound::new(7).unwrap(), 2, traced);
        if !cfg!(miri) {
            check_shared_tails::<8, 0>(Compound::MIB_2, 2, traced);
            check_shared_tails::<8, 3>(Compound::MIB_2, 1, traced);
            check_shared_tails::<4, 1>(Compound::MIB_2, 2, traced);
            check_shared_tails::<8, 1>(Compound::GIB_1, 1, traced);
        }
    }
}

/// Describes compounds with shared tails, and checks the contents of the pages that a kernel would
/// map.
fn check_shared_tails<const N: usize, const METADATA_TAILS: u64>(
    compound: Compound,
    compounds: u64,
    traced: bool,
) {
    let kernel = Kernel::<N, METADATA_TAILS, true> { records_writes: traced, ..Kernel::default() };
    let range = range(compound.frames() * 6, compound.frames() * compounds);
    let memmap = Memmap::new(Kind::DeviceDax, compound, &kernel).stores(Stores::best());
    let memmap = memmap.sharing_tails().unwrap();
    let size = size_of::<[u64; N]>() as u64;
    let per_page = usize::try_from(FRAME_SIZE / size).unwrap();

    let mut shared = GuardedSlots::<N>::new(FRAME_SIZE / size, 0);
    memmap.describe_shared_tails(shared.slots());
    let mut map = GuardedSlots::<N>::new(range.frames(), 0);
    let base = core::ptr::NonNull::from(map.slots()).cast();
    // SAFETY: all slots of `map` may be written, and nothing else uses them.
    let slots = unsafe { Slots::mapped(range, base, memmap.layout()) }.unwrap();
    let written = memmap.describe(slots).unwrap();
    assert_eq!(written.0, memmap.layout().frames_needed(range) * FRAME_SIZE);
    assert_eq!(written, Bytes(compounds * FRAME_SIZE));
    // With tracing, `write` was called for the written descriptors and those of the shared frame.
    let traced_writes = if traced { (1 + compounds) * FRAME_SIZE / size } else { 0 };
    assert_eq!(kernel.written_descriptors.lock().unwrap().len() as u64, traced_writes);

    let expected_words = expected(&kernel, Kind::DeviceDax, compound, true, range);
    // `init_pageblock` was called for each pageblock, with its first descriptor unless that is shared.
    let visited = core::mem::take(&mut *kernel.pageblocks.lock().unwrap());
    let all = range.chunks(1).map(PfnRange::start).zip(&expected_words);
    let starts = all.filter(|(pfn, _)| pfn.number().is_multiple_of(PAGEBLOCK_FRAMES as u64));
    let is_head = |pfn: Pfn| pfn.number().is_multiple_of(compound.frames());
    let starts = starts.map(|(pfn, words)| (pfn, is_head(pfn).then_some(*words)));
    assert_eq!(visited, starts.collect::<Vec<_>>());

    let base_offset = range.start().number() * size;
    let (mut own, mut pages) = (0, 0);
    for (page, expected_words) in memmap.layout().pages(range).zip(expected_words.chunks(per_page))
    {
        let first = usize::try_from((page.offset.0 - base_offset) / size).unwrap();
        let in_map = &map.written()[first..first + per_page];
        match page.backing {
            Backing::OwnFrame => assert!(in_map == expected_words),
            Backing::SharedTails => {
                assert!(shared.written() == expected_words);
                assert!(in_map.iter().all(|words| *words == [UNTOUCHED; N]));
            }
        }
        own += u64::from(page.backing == Backing::OwnFrame);
        pages += 1;
    }
    assert_eq!(own, memmap.layout().frames_needed(range));
    assert_eq!(pages * FRAME_SIZE, range.frames() * size);

    // The address of every tail leads to its head.
    let map_base = 0x4000_0000_usize;
    let address = |pfn: Pfn| map_base + usize::try_from(pfn.number() * size).unwrap();
    for frame in range.chunks(1).map(PfnRange::start) {
        let head = frame.align_down(compound.frames());
        assert_eq!(memmap.layout().head_address(address(frame)), address(head));
    }
}
