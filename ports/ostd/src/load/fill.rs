//! Implements a load that uses all memory, and checks each word of it.

use alloc::vec::Vec;
use core::array::from_fn;
use ostd::mm::io::util::HasVmReaderWriter;
use ostd::mm::{FrameAllocOptions, HasSize, PAGE_SIZE, Segment, VmReader, VmWriter};
use ostd::prelude::println;

/// The number of frames of a segment.
const SEGMENT_FRAMES: usize = 512;

/// The memory in use. Each word holds its own number.
pub struct Fill(Vec<Segment<()>>);

impl Fill {
    /// Returns a load that uses no memory yet.
    pub fn start() -> Fill {
        Fill(Vec::new())
    }

    /// Allocates all free memory in segments of 2 MiB, and writes and checks each word. Frees the
    /// memory unless `keep` is set.
    pub fn use_memory(&mut self, keep: bool) {
        while let Ok(segment) = FrameAllocOptions::new().zeroed(false).alloc_segment(SEGMENT_FRAMES)
        {
            let mut writer = segment.writer();
            for frame in 0..SEGMENT_FRAMES {
                let words = words(self.0.len(), frame);
                writer.write(&mut VmReader::from(as_bytes(&words)));
            }
            self.0.push(segment);
        }
        self.check();
        let bytes: usize = self.0.iter().map(HasSize::size).sum();
        if !keep {
            self.0.clear();
        }
        println!(r#"{{"event":"verified","bytes":{}}}"#, bytes);
    }

    /// Checks the memory in use again and frees it. Returns whether there was any.
    pub fn free(&mut self) -> bool {
        self.check();
        !core::mem::take(&mut self.0).is_empty()
    }

    fn check(&self) {
        for (number, segment) in self.0.iter().enumerate() {
            let mut reader = segment.reader();
            for frame in 0..SEGMENT_FRAMES {
                let mut contents = [0; PAGE_SIZE];
                reader.read(&mut VmWriter::from(&mut contents[..]));
                assert!(contents == *as_bytes(&words(number, frame)), "memory lost its contents");
            }
        }
    }
}

/// Returns the expected contents of a frame of a segment.
fn words(segment: usize, frame: usize) -> [[u8; 8]; PAGE_SIZE / 8] {
    let first = ((segment * SEGMENT_FRAMES + frame) * PAGE_SIZE / 8) as u64;
    from_fn(|word| (first + word as u64).to_ne_bytes())
}

fn as_bytes(words: &[[u8; 8]; PAGE_SIZE / 8]) -> &[u8] {
    words.as_flattened()
}
