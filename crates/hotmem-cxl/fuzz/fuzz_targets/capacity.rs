//! Keeps account of dynamic capacity while the device reports what the fuzzer says.
#![no_main]

use hotmem_cxl::DynamicCapacity;
use hotmem_cxl::command::{Event, Extent, More, Region};

const REGION: Region = Region { start: 1 << 28, decode_len: 1 << 28, len: 1 << 28, block: 1 << 21 };

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let mut capacity = DynamicCapacity::<6>::new(&[REGION]);
    for step in bytes.chunks_exact(6) {
        let &[kind, first, count, distortion, flags, room] = step else { continue };
        let more = if flags & 1 != 0 { More::Follows } else { More::Last };
        // Mostly blocks in the region, but also anything else.
        let start = REGION.start + u64::from(first % 32) * REGION.block;
        let len = u64::from(count % 8) * REGION.block;
        let extent = match distortion {
            0..200 => Extent { start, len },
            _ => Extent { start: start << (distortion % 64), len: len.rotate_left(distortion.into()) },
        };
        let event = match kind % 4 {
            0 => Event::Add(extent, more),
            1 => Event::Release(extent, more),
            2 => Event::ForcedRelease(extent, more),
            _ => Event::Other,
        };
        let _ = capacity.take(&event);
        if flags & 2 != 0 {
            let _ = capacity.answer(|extent| extent.start >> 21 & u64::from(flags >> 4) == 0);
        }
        if flags & 4 != 0 {
            let mut payload = [0; 128];
            let _ = capacity.payload(&mut payload[..usize::from(room % 128)]);
            let _ = capacity.delivered();
        }
        if flags & 8 != 0 {
            capacity.failed();
        }
        for pair in capacity.accepted().windows(2) {
            assert!(pair[0].start + pair[0].len < pair[1].start);
        }
        for extent in capacity.accepted() {
            assert!(extent.start >= REGION.start && extent.len > 0);
            assert!(extent.start + extent.len <= REGION.start + REGION.len);
        }
    }
});
