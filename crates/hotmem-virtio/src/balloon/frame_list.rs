//! Defines lists of frames: those that go to the host or come back together, and those of one request.

use core::fmt;
use hotmem::geometry::PAGEBLOCK_FRAMES;
use hotmem::{Pfn, PfnRange};

/// Frames that are inflated or deflated together, wherever they lie: at most as many as a pageblock has,
/// because most free memory is in whole pageblocks. The driver sends them by one or two requests, and
/// then asks for the next list.
pub struct FrameList {
    numbers: [u32; Self::MAX_LEN],
    len: usize,
    limit: usize,
    /// The bit of each frame that the device has initialised: bit N % 8 of byte N / 8 is that of
    /// the Nth frame.
    initialised: [u8; Self::MAX_LEN.div_ceil(8)],
}

/// The numbers of the frames of one inflate or deflate request.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct FrameNumbers {
    numbers: [u32; Self::MAX_LEN],
    len: usize,
}

/// The reason why a range was not added to a [`FrameList`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum NotListed {
    /// The range has no frame, or more than there is room for.
    Length,
    /// A frame lies at or above 16 TiB, so that its number does not fit in 32 bits.
    TooHigh,
}

impl FrameList {
    /// The maximal number of frames.
    pub const MAX_LEN: usize = PAGEBLOCK_FRAMES;
    /// The first frame whose number does not fit in 32 bits.
    pub const FRAME_LIMIT: Pfn = match Pfn::new(1 << 32) {
        Some(limit) => limit,
        None => Pfn::LIMIT,
    };

    pub(super) const fn new() -> FrameList {
        FrameList {
            numbers: [0; Self::MAX_LEN],
            len: 0,
            limit: 0,
            initialised: [0; Self::MAX_LEN.div_ceil(8)],
        }
    }

    /// Makes an empty list with room for this number of frames, at most [`MAX_LEN`](Self::MAX_LEN).
    #[must_use]
    pub fn with_room(frames: u64) -> FrameList {
        let mut list = FrameList::new();
        list.restart(frames);
        list
    }

    /// Empties the list, and makes room for `frames` frames, at most [`MAX_LEN`](Self::MAX_LEN).
    pub(super) fn restart(&mut self, frames: u64) {
        self.len = 0;
        self.initialised.fill(0);
        self.limit = usize::try_from(frames).unwrap_or(usize::MAX).min(Self::MAX_LEN);
    }

    /// Returns the number of frames that can be added.
    #[must_use]
    pub fn room(&self) -> usize {
        self.limit.saturating_sub(self.len)
    }

    /// Returns the number of frames.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns whether the list has no frame.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Adds the frames of `range`, at most [`room`](Self::room).
    ///
    /// # Errors
    /// The reason. No frame was added.
    pub fn push(&mut self, range: PfnRange) -> Result<(), NotListed> {
        if range.is_empty() || range.frames() > self.room() as u64 {
            return Err(NotListed::Length);
        }
        if range.end() > Self::FRAME_LIMIT {
            return Err(NotListed::TooHigh);
        }
        for number in range.start().number()..range.end().number() {
            // All numbers fit, because the range ends below the limit.
            self.numbers[self.len] = u32::try_from(number).unwrap_or(u32::MAX);
            self.len += 1;
        }
        Ok(())
    }

    /// Iterates over the frames, by ranges.
    pub fn ranges(&self) -> impl Iterator<Item = PfnRange> + '_ {
        ranges(self.numbers.get(..self.len).unwrap_or(&[]))
    }

    /// Iterates over the frames that the device says it has initialised, by ranges.
    pub fn initialised(&self) -> impl Iterator<Item = PfnRange> + '_ {
        let numbers = self.numbers.get(..self.len).unwrap_or(&[]);
        let is_initialised = |index: usize| {
            self.initialised.get(index / 8).is_some_and(|byte| byte >> (index % 8) & 1 != 0)
        };
        let mut next = 0;
        core::iter::from_fn(move || {
            let first = (next..numbers.len()).find(|&index| is_initialised(index))?;
            let run = numbers.get(first..)?.windows(2).zip(first + 1..);
            let further = run.take_while(|&(pair, index)| {
                pair[0].checked_add(1) == Some(pair[1]) && is_initialised(index)
            });
            let frames = 1 + further.count();
            next = first + frames;
            PfnRange::with_len(Pfn::new(u64::from(*numbers.get(first)?))?, frames as u64)
        })
    }

    /// Records which frames from number `first` of the list on the device has initialised. `first`
    /// is a multiple of 8.
    pub(super) fn set_initialised(&mut self, first: usize, bits: &[u8]) {
        let places = self.initialised.iter_mut().skip(first / 8);
        places.zip(bits).for_each(|(place, &byte)| *place = byte);
    }

    /// Returns those frames from number `first` of the list on that fit in one request.
    pub(super) fn part_from(&self, first: usize) -> FrameNumbers {
        let mut part = FrameNumbers { numbers: [0; FrameNumbers::MAX_LEN], len: 0 };
        let remaining = self.numbers.get(first..self.len).unwrap_or(&[]);
        for (destination, &number) in part.numbers.iter_mut().zip(remaining) {
            *destination = number;
            part.len += 1;
        }
        part
    }
}

impl FrameNumbers {
    /// The maximal number of frames, the limit of existing devices.
    pub const MAX_LEN: usize = 256;

    /// Makes a list of these numbers, or returns `None` if there are more than
    /// [`MAX_LEN`](Self::MAX_LEN).
    #[must_use]
    pub fn new(numbers: &[u32]) -> Option<FrameNumbers> {
        let mut list = FrameNumbers { numbers: [0; Self::MAX_LEN], len: numbers.len() };
        list.numbers.get_mut(..numbers.len())?.copy_from_slice(numbers);
        Some(list)
    }

    /// Returns the numbers.
    #[must_use]
    pub fn as_slice(&self) -> &[u32] {
        self.numbers.get(..self.len).unwrap_or(&self.numbers)
    }

    /// Returns the size in bytes of the request's bitmap, if there is one.
    #[must_use]
    pub fn bitmap_bytes(&self) -> usize {
        self.len.div_ceil(8)
    }

    /// Returns the number of frames.
    #[must_use]
    pub fn frames(&self) -> u64 {
        self.len as u64
    }

    /// Iterates over the frames, by ranges.
    pub fn ranges(&self) -> impl Iterator<Item = PfnRange> + '_ {
        ranges(self.as_slice())
    }
}

/// Iterates over the ranges that consecutive numbers form.
fn ranges(numbers: &[u32]) -> impl Iterator<Item = PfnRange> + '_ {
    let runs = numbers.chunk_by(|&number, &next| number.checked_add(1) == Some(next));
    runs.filter_map(|run| {
        let start = Pfn::new(u64::from(*run.first()?))?;
        PfnRange::with_len(start, run.len() as u64)
    })
}

impl fmt::Debug for FrameList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.ranges()).finish()
    }
}

impl fmt::Debug for FrameNumbers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.ranges()).finish()
    }
}

impl fmt::Display for NotListed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            NotListed::Length => "the range is empty, or longer than the room in the list",
            NotListed::TooHigh => "the range does not lie below 16 TiB",
        })
    }
}

impl core::error::Error for NotListed {}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(start: u64, frames: u64) -> PfnRange {
        PfnRange::with_len(Pfn::new(start).unwrap(), frames).unwrap()
    }

    #[test]
    fn a_list_has_at_most_its_room_and_refuses_what_does_not_fit() {
        let mut list = FrameList::with_room(10);
        assert_eq!(list.push(PfnRange::EMPTY), Err(NotListed::Length));
        assert_eq!(list.push(range(5, 11)), Err(NotListed::Length));
        list.push(range(5, 8)).unwrap();
        assert_eq!(list.push(range(100, 3)), Err(NotListed::Length));
        list.push(range(3, 2)).unwrap();
        assert_eq!((list.len(), list.room()), (10, 0));
        assert!(list.ranges().eq([range(5, 8), range(3, 2)]));
        assert_eq!(FrameList::with_room(u64::MAX).room(), 512);
    }

    #[test]
    fn frames_above_16_tib_are_refused_and_not_truncated() {
        let mut list = FrameList::with_room(4);
        let limit = FrameList::FRAME_LIMIT.number();
        assert_eq!(list.push(range(limit - 1, 2)), Err(NotListed::TooHigh));
        assert_eq!(list.push(range(limit, 1)), Err(NotListed::TooHigh));
        list.push(range(limit - 2, 2)).unwrap();
        assert_eq!(list.part_from(0).as_slice(), [u32::MAX - 1, u32::MAX]);
        assert!(list.ranges().eq([range(limit - 2, 2)]));
    }

    #[test]
    fn initialised_frames_form_ranges_of_the_list() {
        let mut list = FrameList::with_room(512);
        list.push(range(1000, 20)).unwrap();
        list.push(range(5000, 300)).unwrap();
        assert_eq!(list.initialised().next(), None);
        list.set_initialised(0, &[0b1111_1110, u8::MAX, u8::MAX, 1]);
        assert!(list.initialised().eq([range(1001, 19), range(5000, 5)]));
        list.set_initialised(0, &[0; 256 / 8]);
        list.set_initialised(256, &[u8::MAX; 8]);
        assert!(list.initialised().eq([range(5236, 64)]));
        list.restart(512);
        list.push(range(0, 512)).unwrap();
        assert_eq!(list.initialised().next(), None);
    }

    #[test]
    fn requests_have_at_most_256_frames() {
        let mut list = FrameList::with_room(512);
        list.push(range(1000, 300)).unwrap();
        let (first, second) = (list.part_from(0), list.part_from(256));
        assert!(first.ranges().eq([range(1000, 256)]));
        assert!(second.ranges().eq([range(1256, 44)]));
        assert_eq!(list.part_from(300).frames(), 0);
        assert_eq!(FrameNumbers::new(&[0; 257]), None);
        assert_eq!(FrameNumbers::new(&[7, 8]).unwrap().as_slice(), [7, 8]);
    }
}
