//! Tests of tails that compounds share.

use super::*;
use hotmem_addr::Bytes;
use hotmem_addr::geometry::PAGEBLOCK_FRAMES;

#[test]
fn shared_tails_are_written_once_and_every_descriptor_is_seen() {
    for traced in [false, true] {
        shared_tails::<8, 1>(Compound::new(7).unwrap(), 2, traced);
        if !cfg!(miri) {
            shared_tails::<8, 0>(Compound::MIB_2, 2, traced);
            shared_tails::<8, 3>(Compound::MIB_2, 1, traced);
            shared_tails::<4, 1>(Compound::MIB_2, 2, traced);
            shared_tails::<8, 1>(Compound::GIB_1, 1, traced);
        }
    }
}

/// Describes compounds with shared tails and reads the map through the pages that a kernel would
/// have mapped.
fn shared_tails<const N: usize, const META: u64>(compound: Compound, compounds: u64, traced: bool) {
    let kernel = Kernel::<N, META, true> { traced, ..Kernel::default() };
    let range = range(compound.frames() * 6, compound.frames() * compounds);
    let memmap = Memmap::new(Kind::DeviceDax, compound, &kernel).stores(Stores::best());
    let memmap = memmap.sharing_tails().unwrap();
    let size = size_of::<[u64; N]>() as u64;
    let per_page = usize::try_from(FRAME_SIZE / size).unwrap();

    let mut shared = GuardedSlots::<N>::new(FRAME_SIZE / size, 0);
    memmap.describe_shared_tails(shared.slots());
    let mut map = GuardedSlots::<N>::new(range.frames(), 0);
    let base = core::ptr::NonNull::from(map.slots()).cast();
    // SAFETY: all of the map is there.
    let slots = unsafe { Slots::mapped(range, base, memmap.layout()) }.unwrap();
    let written = memmap.describe(slots).unwrap();
    assert_eq!(written.0, memmap.layout().frames_needed(range) * FRAME_SIZE);
    assert_eq!(written, Bytes(compounds * FRAME_SIZE));
    // With tracing, those of the shared frame are counted too.
    let watched = if traced { (1 + compounds) * FRAME_SIZE / size } else { 0 };
    assert_eq!(kernel.written.lock().unwrap().len() as u64, watched);

    let want = expected(&kernel, Kind::DeviceDax, compound, true, range);
    // Each pageblock was visited, and its first descriptor could be read unless it is shared.
    let visited = core::mem::take(&mut *kernel.pageblocks.lock().unwrap());
    let all = range.chunks(1).map(PfnRange::start).zip(&want);
    let starts = all.filter(|(pfn, _)| pfn.number().is_multiple_of(PAGEBLOCK_FRAMES as u64));
    let is_head = |pfn: Pfn| pfn.number().is_multiple_of(compound.frames());
    let starts = starts.map(|(pfn, words)| (pfn, is_head(pfn).then_some(*words)));
    assert_eq!(visited, starts.collect::<Vec<_>>());

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

    // The address of every tail leads to its head.
    let map_base = 0x4000_0000_usize;
    let address = |pfn: Pfn| map_base + usize::try_from(pfn.number() * size).unwrap();
    for one in range.chunks(1).map(PfnRange::start) {
        let head = one.align_down(compound.frames());
        assert_eq!(memmap.layout().head_address(address(one)), address(head));
    }
}
