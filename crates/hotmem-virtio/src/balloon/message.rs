//! What goes to the device, and how it travels.

use super::queues::Queue;
use super::statistics::MemoryStatistics;
use core::fmt;
use hotmem::PfnRange;

/// A request for one of the device's queues. There is never more than one on a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Message {
    /// These frames, at most [`Message::MOST_FRAMES`], go into the balloon. The device reads
    /// [their numbers](Message::frame_numbers), four bytes each, little-endian.
    Inflate(PfnRange),
    /// These frames come out of the balloon. As above.
    Deflate(PfnRange),
    /// The device reads [`MemoryStatistics::to_bytes`], and keeps it until it wants news.
    Statistics(MemoryStatistics),
    /// Hints for this command begin; 0: they end. The device reads four bytes, little-endian.
    HintCommand(u32),
    /// These frames are free. They themselves are the buffer, for the device to write.
    Hint(PfnRange),
    /// These frames are free, and the host may take them. They themselves are the buffers, one a
    /// range, for the device to write.
    Report(Ranges),
}

/// Free memory for one report.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Ranges {
    ranges: [PfnRange; Self::MOST],
    len: usize,
}

impl Message {
    /// Frames that one inflate or deflate request names at most.
    pub const MOST_FRAMES: u64 = 256;
    /// Bytes of such a request at most.
    pub const MOST_BYTES: usize = 4 * 256;
    /// Frames from here on have numbers that do not fit in 32 bits.
    pub const FRAME_LIMIT: u64 = 1 << 32;

    /// Returns which queue it is for.
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

    /// Returns the numbers of frames, as an inflate or deflate request lists them.
    pub fn frame_numbers(range: PfnRange) -> impl Iterator<Item = u32> {
        // The driver lets no range into the balloon that lies higher.
        (range.start().number()..range.end().number()).map_while(|pfn| u32::try_from(pfn).ok())
    }
}

impl Ranges {
    /// Ranges in one report at most: what devices have room for.
    pub const MOST: usize = 32;

    /// These ranges; `None` if they are more than [`MOST`](Self::MOST).
    #[must_use]
    pub fn new(ranges: &[PfnRange]) -> Option<Ranges> {
        let mut all = [PfnRange::EMPTY; Self::MOST];
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
    fn frames_are_numbered_up_to_what_32_bits_hold() {
        let last = PfnRange::with_len(Pfn::new(Message::FRAME_LIMIT - 2).unwrap(), 2).unwrap();
        assert!(Message::frame_numbers(last).eq([u32::MAX - 1, u32::MAX]));
        let beyond = PfnRange::with_len(Pfn::new(Message::FRAME_LIMIT - 1).unwrap(), 3).unwrap();
        assert!(Message::frame_numbers(beyond).eq([u32::MAX]), "never truncated");
    }

    #[test]
    fn a_report_has_room_for_so_many() {
        let range = |n: u64| PfnRange::with_len(Pfn::new(n * 512).unwrap(), 512).unwrap();
        let many: [PfnRange; 40] = core::array::from_fn(|n| range(n as u64));
        assert_eq!(Ranges::new(&many), None, "never truncated");
        for few in [&many[..0], &many[..3], &many[..32]] {
            assert_eq!(Ranges::new(few).unwrap().as_slice(), few);
        }
    }
}
