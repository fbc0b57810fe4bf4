//! Writes a request of the driver to a `struct hotmem_balloon_message`.

use super::types::{
    HOTMEM_QUEUE_DEFLATE, HOTMEM_QUEUE_HINTS, HOTMEM_QUEUE_INFLATE, HOTMEM_QUEUE_REPORTS,
    HOTMEM_QUEUE_STATISTICS, hotmem_balloon_message, hotmem_range,
};
use ::hotmem::PfnRange;
use hotmem_virtio::balloon::{Message, Queue};

pub(super) fn queue_number(queue: Queue) -> i32 {
    match queue {
        Queue::Inflate => HOTMEM_QUEUE_INFLATE,
        Queue::Deflate => HOTMEM_QUEUE_DEFLATE,
        Queue::Statistics => HOTMEM_QUEUE_STATISTICS,
        Queue::Hints => HOTMEM_QUEUE_HINTS,
        Queue::Reports => HOTMEM_QUEUE_REPORTS,
    }
}

/// Writes the queue and the buffers of `message` to `out`. If `with_bitmap` is set, an inflate request
/// has a bitmap.
pub(super) fn write_message(
    out: &mut hotmem_balloon_message,
    message: &Message,
    with_bitmap: bool,
) {
    out.queue = queue_number(message.queue());
    (out.len, out.count, out.bitmap_len) = (0, 0, 0);
    let c_range =
        |range: &PfnRange| hotmem_range { paddr: range.start().phys_addr(), len: range.bytes().0 };
    let mut put_bytes = |bytes: &[u8]| {
        for (destination, &byte) in out.bytes.iter_mut().zip(bytes) {
            *destination = byte;
            out.len += 1;
        }
    };
    if let Message::Inflate(frames) = message
        && with_bitmap
    {
        out.bitmap_len = u32::try_from(frames.bitmap_bytes()).unwrap_or(0);
    }
    match message {
        Message::Inflate(frames) | Message::Deflate(frames) => {
            for (destination, number) in out.bytes.chunks_exact_mut(4).zip(frames.as_slice()) {
                destination.copy_from_slice(&number.to_le_bytes());
                out.len += 4;
            }
        }
        Message::Statistics(statistics) => {
            let (bytes, len) = statistics.to_bytes();
            put_bytes(&bytes[..len]);
        }
        Message::HintCommand(command) => put_bytes(&command.to_le_bytes()),
        Message::Hint(range) => {
            out.ranges[0] = c_range(range);
            out.count = 1;
        }
        Message::Report(ranges) => {
            for (destination, range) in out.ranges.iter_mut().zip(ranges.as_slice()) {
                *destination = c_range(range);
                out.count += 1;
            }
        }
    }
}
