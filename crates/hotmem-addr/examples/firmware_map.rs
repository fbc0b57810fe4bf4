//! Converts a firmware memory map into whole frames and whole pageblocks.

use hotmem_addr::geometry::PAGEBLOCK_FRAMES;
use hotmem_addr::{Bytes, Pfn, PfnRange};

fn main() {
    // Each entry has its first byte and its length, as in an e820 map. Some entries do not consist of
    // whole frames.
    let ram = [(0, 0x9_fc00), (0x10_0000, (512 << 20) - 0x10_0000 - 0x2_0000), (4 << 30, 6 << 20)];
    let mut pageblocks = 0;
    for (start, bytes) in ram {
        let first = Pfn::containing(u64::next_multiple_of(start, 4096));
        let frames = first.zip(Pfn::containing(start + bytes));
        let Some(range) = frames.and_then(|(first, end)| PfnRange::new(first, end)) else {
            println!("{start:#x}: lies beyond the last physical address");
            continue;
        };
        let whole = range.align_inward(PAGEBLOCK_FRAMES as u64);
        println!("{range}: {} frames, whole pageblocks in {whole}", range.frames());
        pageblocks += whole.chunks(PAGEBLOCK_FRAMES as u64).count();
    }
    println!("{pageblocks} pageblocks of {}", Bytes::mib(2));
    assert_eq!(pageblocks, 254 + 3);
}

#[test]
fn whole_pageblocks_are_counted() {
    main();
}
