//! Defines the requests to the device, and encodes their contents.

use super::frame_list::FrameNumbers;
use super::inflate_bitmap::InflateBitmap;
use super::queues::Queue;
use super::statistics::MemoryStatistics;
use core::fmt;
use hotmem::PfnRange;

/// A request for one of the device's queues. At most one is outstanding on a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Message {
    /// Inflate by these frames, at most [`Message::MAX_FRAMES`]. The device reads [their
    /// numbers](FrameNumbers::as_slice), four bytes each, little-endian. If
    /// `DEVICE_INIT_ON_INFLATE` is negotiated, a buffer follows that the device writes, of
    /// [`bitmap_bytes`](FrameNumbers::bitmap_bytes) bytes, which are 0 before.
    Inflate(FrameNumbers),
    /// Deflate by these frames. The device reads their numbers, as those of `Inflate`.
    Deflate(FrameNumbers),
    /// The device reads [`MemoryStatistics::to_bytes`], and keeps the buffer until it requests new
    /// statistics.
    Statistics(MemoryStatistics),
    /// The start of the hints for this command, or the end of hints if the command is 0. The device
    /// reads four bytes, little-endian.
    HintCommand(u32),
    /// A hint that these frames are free. The frames are the buffer, which the device may write.
    Hint(PfnRange),
    /// A report of free frames that the host may take. Each range is a buffer, which the device may
    /// write.
    Report(Ranges),
}

/// An answer of the device: it has used the outstanding buffer of a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Answer {
    /// The queue.
    pub queue: Queue,
    /// The number of bytes that the device reports as written to the buffer. It means something for a
    /// report, if `DEVICE_INIT_REPORTED` is negotiated, and for an inflate request, if
    /// `DEVICE_INIT_ON_INFLATE` is negotiated.
    pub written: u32,
    /// What the device has written to the bitmap of an inflate request, if `DEVICE_INIT_ON_INFLATE`
    /// is negotiated. Otherwise it means nothing.
    pub bitmap: InflateBitmap,
}

/// An answer by which the device reports no written bytes.
impl From<Queue> for Answer {
    fn from(queue: Queue) -> Answer {
        Answer { queue, written: 0, bitmap: InflateBitmap::default() }
    }
}

/// The ranges of one report.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Ranges {
    ranges: [PfnRange; Self::MAX_LEN],
    len: usize,
}

impl Message {
    /// The maximal number of frames in one inflate or deflate request.
    pub const MAX_FRAMES: usize = FrameNumbers::MAX_LEN;
    /// The maximal size in bytes of one inflate or deflate request.
    pub const MAX_BYTES: usize = 4 * Self::MAX_FRAMES;

    /// Returns the queue that the request is for.
    #[must_use]
    pub fn queue(&self) -> Queue {
        match self {
            Message::Inflate(_) => Queue::Inflate,
            Message::Deflate(_) => Queue::Deflate,
            Message::Statistics(_) => Queue::Statistics,
            Message::HintCommand(_) | Message::Hint(_) => Queue::Hints,
            Message::Report(_) => Queue::Reports,
        }
    }
}

impl Ranges {
    /// The maximal number of ranges in one report, the limit of existing devices.
    pub const MAX_LEN: usize = 32;

    /// Makes a list of ranges, or returns `None` if there are more than [`MAX_LEN`](Self::MAX_LEN).
    #[must_use]
    pub fn new(ranges: &[PfnRange]) -> Option<Ranges> {
        let mut all = [PfnRange::EMPTY; Self::MAX_LEN];
        all.get_mut(..ranges.len())?.copy_from_slice(ranges);
        Some(Ranges { ranges: all, len: ranges.len() })
    }

    /// Returns the ranges.
    #[must_use]
    pub fn as_slice(&self) -> &[PfnRange] {
        self.ranges.get(..self.len).unwrap_or(&self.ranges)
    }
}

impl fmt::Debug for Ranges {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.as_slice()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hotmem::Pfn;

    #[test]
    fn a_report_has_at_most_32_ranges() {
        let range = |n: u64| PfnRange::with_len(Pfn::new(n * 512).unwrap(), 512).unwrap();
        let many: [PfnRange; 40] = core::array::from_fn(|n| range(n as u64));
        assert_eq!(Ranges::new(&many), None, "a longer list is refused, not truncated");
        for few in [&many[..0], &many[..3], &many[..32]] {
            assert_eq!(Ranges::new(few).unwrap().as_slice(), few);
        }
    }
}
