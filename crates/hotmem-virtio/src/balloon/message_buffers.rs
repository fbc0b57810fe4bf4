//! Writes the contents of requests to memory that the device reads, and names the buffers.

use super::inflate_bitmap::InflateBitmap;
use super::message::Message;
use super::statistics::MemoryStatistics;
use crate::dma::DmaMemory;
use crate::queue::Buffer;
use hotmem::PfnRange;

/// The memory of the contents of requests. Inflate and deflate requests share a buffer, because at
/// most one of them is outstanding.
#[derive(Debug)]
pub(super) struct MessageBuffers(DmaMemory);

/// The offsets of the buffers.
const FRAME_NUMBERS: usize = 0;
const STATISTICS: usize = FRAME_NUMBERS + Message::MAX_BYTES;
const COMMAND: usize = STATISTICS + MemoryStatistics::SIZE;
const BITMAP: usize = COMMAND + 4;

impl MessageBuffers {
    /// The size in bytes of the memory.
    pub(super) const SIZE: usize = (BITMAP + InflateBitmap::MAX_BYTES).next_multiple_of(16);
    pub(super) const EMPTY: Buffer = Buffer { device_addr: 0, len: 0, device_writes: true };

    /// Takes the memory, or returns `None` if it is smaller than [`SIZE`](Self::SIZE).
    pub(super) fn new(memory: DmaMemory) -> Option<MessageBuffers> {
        (memory.len() >= Self::SIZE).then_some(MessageBuffers(memory))
    }

    /// Writes the contents of `message`. Returns its chain, which takes the place of the first of
    /// `buffers`. If `with_bitmap` is set, the chain of an inflate request has a bitmap.
    pub(super) fn write<'b>(
        &self,
        message: &Message,
        with_bitmap: bool,
        buffers: &'b mut [Buffer],
    ) -> &'b [Buffer] {
        let len = match message {
            Message::Inflate(frames) if with_bitmap => {
                // The device may write fewer bytes than it says.
                self.0.write(BITMAP, [0; InflateBitmap::MAX_BYTES]);
                let bitmap = self.buffer(BITMAP, frames.bitmap_bytes(), true);
                put(buffers, [self.frame_numbers(frames.as_slice()), bitmap])
            }
            Message::Inflate(frames) | Message::Deflate(frames) => {
                put(buffers, [self.frame_numbers(frames.as_slice())])
            }
            Message::Statistics(statistics) => {
                let (entries, len) = statistics.to_bytes();
                self.0.write(STATISTICS, entries);
                put(buffers, [self.buffer(STATISTICS, len, false)])
            }
            Message::HintCommand(command) => {
                self.0.write(COMMAND, command.to_le_bytes());
                put(buffers, [self.buffer(COMMAND, 4, false)])
            }
            Message::Hint(range) => put(buffers, [frames_buffer(*range)]),
            Message::Report(ranges) => {
                put(buffers, ranges.as_slice().iter().map(|&range| frames_buffer(range)))
            }
        };
        buffers.get(..len).unwrap_or(buffers)
    }

    /// Returns what the device has written to the bitmap of the last inflate request.
    pub(super) fn bitmap(&self) -> InflateBitmap {
        InflateBitmap::new(self.0.read(BITMAP))
    }

    fn frame_numbers(&self, numbers: &[u32]) -> Buffer {
        let mut len = 0;
        for number in numbers {
            self.0.write(FRAME_NUMBERS + len, number.to_le_bytes());
            len += 4;
        }
        self.buffer(FRAME_NUMBERS, len, false)
    }

    fn buffer(&self, offset: usize, len: usize, device_writes: bool) -> Buffer {
        let len = u32::try_from(len).unwrap_or(u32::MAX);
        Buffer { device_addr: self.0.device_addr() + offset as u64, len, device_writes }
    }
}

/// Puts these buffers into the first places, and returns their number.
fn put(places: &mut [Buffer], buffers: impl IntoIterator<Item = Buffer>) -> usize {
    let pairs = places.iter_mut().zip(buffers);
    pairs.map(|(place, buffer)| *place = buffer).count()
}

/// Returns a buffer that consists of the frames of `range`, and that the device may write.
fn frames_buffer(range: PfnRange) -> Buffer {
    // The size of a report or hint fits in 32 bits. Otherwise the length is 0, and the queue
    // refuses the buffer.
    let len = u32::try_from(range.bytes().0).unwrap_or(0);
    Buffer { device_addr: range.start().phys_addr(), len, device_writes: true }
}
