//! Writes a driver's request into the buffers of a `struct hotmem_balloon_message`.

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

/// Writes the buffers of a request.
pub(super) fn write(out: &mut hotmem_balloon_message, message: &Message) {
    out.queue = queue_number(message.queue());
    (out.len, out.count) = (0, 0);
    let one =
        |range: &PfnRange| hotmem_range { paddr: range.start().phys_addr(), len: range.bytes().0 };
    let mut read = |bytes: &[u8]| {
        for (place, &byte) in out.bytes.iter_mut().zip(bytes) {
            *place = byte;
            out.len += 1;
        }
    };
    match message {
        Message::Inflate(range) | Message::Deflate(range) => {
            for (place, number) in out.bytes.chunks_exact_mut(4).zip(Message::frame_numbers(*range))
            {
                place.copy_from_slice(&number.to_le_bytes());
                out.len += 4;
            }
        }
        Message::Statistics(statistics) => {
            let (bytes, len) = statistics.to_bytes();
            read(&bytes[..len]);
        }
        Message::HintCommand(command) => read(&command.to_le_bytes()),
        Message::Hint(range) => {
            out.ranges[0] = one(range);
            out.count = 1;
        }
        Message::Report(ranges) => {
            for (place, range) in out.ranges.iter_mut().zip(ranges.as_slice()) {
                *place = one(range);
                out.count += 1;
            }
        }
    }
}
