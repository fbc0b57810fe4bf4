//! Checks that the host takes no pinned memory. A device writes to two free ranges, and the first
//! is pinned. The host takes free memory that is reported to it. The data that the device wrote to
//! the pinned range must not be lost.

use super::edu::{Edu, TransferUnfinished};
use super::fatal::must;
use super::hooks::KernelMapping;
use super::memory::{FRAME_WORDS, FRAMES, alloc_frames, virt};
use super::this_cpu::ThisCpu;
use crate::arch::Clock;
use core::fmt;
use core::sync::atomic::{AtomicU8, Ordering::Relaxed};
use hotmem::geometry::{FRAME_SIZE, PAGEBLOCK_FRAMES};
use hotmem::{AllocError, AllocRequest, Bytes, Hotplug, Pfn, PfnRange, RangeError, RangeErrorKind};
use hotmem_guest::event::Event;

/// Two ranges of whole pageblocks, all of them free. The device has written to each.
pub(crate) struct PinnedRanges {
    edu: Edu,
    ranges: [PfnRange; 2],
    /// The number of pinned ranges. The first range is pinned first.
    pinned_count: usize,
    /// The number of pinned ranges that the device has written to since they were pinned.
    written_count: usize,
}

/// The reason why a check of pinned memory failed.
pub(crate) enum PinnedError {
    /// A frame cannot be allocated, because the frame is in use or there is no memory.
    Alloc(AllocError),
    /// The engine refuses the pin.
    Pin(RangeError),
    /// The device does not finish a transfer.
    TransferUnfinished,
    /// The frame does not hold the data that the device wrote.
    DataLost(Pfn),
}

/// The index within each pageblock of the one frame that the device writes to.
const WRITTEN_FRAME: u64 = 77;

impl PinnedRanges {
    /// Makes the device write to two ranges of `frames` frames each, and pins the first.
    pub(crate) fn begin(
        edu: Edu,
        frames: u64,
        hotplug: &mut Hotplug<'_, ThisCpu, KernelMapping>,
        clock: &Clock,
    ) -> Result<Self, PinnedError> {
        let reach = Pfn::containing(1 << Edu::ADDRESS_BITS).unwrap_or(Pfn::LIMIT);
        let request = AllocRequest::frames(frames).aligned(PAGEBLOCK_FRAMES as u64).within(..reach);
        let source = alloc(AllocRequest::frames(1).within(..reach))?;
        for index in 0..Edu::WORDS {
            // SAFETY: the frame was allocated just now, so it is mapped and has no other user.
            unsafe { FRAME_WORDS.write(source.start(), index, data_word(index)) }
        }
        edu.read(source.start(), clock)?;
        let ranges = [alloc(request)?, alloc(request)?];
        for range in ranges {
            touch(range);
            written_frames(&[range]).try_for_each(|frame| write(&edu, frame, clock))?;
        }
        [source, ranges[0], ranges[1]].into_iter().for_each(free);
        let mut pinned = PinnedRanges { edu, ranges, pinned_count: 0, written_count: 1 };
        pinned.pin(hotplug)?;
        Ok(pinned)
    }

    /// Pins the next range, if not all ranges are pinned.
    pub(crate) fn pin(
        &mut self,
        hotplug: &mut Hotplug<'_, ThisCpu, KernelMapping>,
    ) -> Result<(), PinnedError> {
        let Some(&range) = self.ranges.get(self.pinned_count) else { return Ok(()) };
        hotplug.pin(range, touch).map_err(PinnedError::Pin)?;
        self.pinned_count += 1;
        Ok(())
    }

    /// Unpins the memory. Returns whether all of it was still pinned.
    pub(crate) fn unpin(self, hotplug: &mut Hotplug<'_, ThisCpu, KernelMapping>) -> bool {
        self.ranges.into_iter().take(self.pinned_count).all(|range| hotplug.unpin(range))
    }

    /// Checks that pinned ranges hold the data that the device wrote: both the CPU and the device
    /// read the data. Then makes the device write to the ranges that were pinned since the last
    /// check.
    pub(crate) fn check(&mut self, clock: &Clock) -> Result<(), PinnedError> {
        let (written, new) = self.ranges[..self.pinned_count].split_at(self.written_count);
        for frame in written_frames(written) {
            let allocated = alloc(AllocRequest::frames(1).at(frame))?;
            if !holds_device_data(frame) {
                return Err(PinnedError::DataLost(frame));
            }
            free(allocated);
        }
        for frame in written_frames(written).take(1).chain(written_frames(new)) {
            let allocated = alloc(AllocRequest::frames(1).at(frame))?;
            if written.iter().any(|range| range.contains(frame)) {
                self.edu.read(frame, clock)?;
            }
            write(&self.edu, frame, clock)?;
            free(allocated);
        }
        self.written_count = self.pinned_count;
        Ok(())
    }

    /// Returns an event with the size of the pinned ranges and the amount of the device's data that
    /// is left in memory that is not pinned.
    pub(crate) fn event(&self) -> Result<Event<'static>, PinnedError> {
        let (pinned, unpinned) = self.ranges.split_at(self.pinned_count);
        let mut left = 0;
        for frame in written_frames(unpinned) {
            match alloc(AllocRequest::frames(1).at(frame)) {
                Ok(allocated) => {
                    left += u64::from(holds_device_data(frame));
                    free(allocated);
                }
                // The frame is in the balloon or is being reported.
                Err(PinnedError::Alloc(AllocError::NotFree(_))) => {}
                Err(error) => return Err(error),
            }
        }
        let [addr, other] = self.ranges.map(|range| range.start().phys_addr());
        let pinned = pinned.iter().map(|range| range.bytes()).fold(Bytes::ZERO, |a, b| a + b);
        Ok(Event::Pinned { addr, other, pinned, left: Bytes(left * FRAME_SIZE) })
    }
}

impl PinnedError {
    /// Returns whether the error is temporary: the host may hold the memory at this moment, and
    /// will return it.
    pub(crate) fn is_temporary(&self) -> bool {
        matches!(
            self,
            PinnedError::Pin(
                RangeError { kind: RangeErrorKind::Reporting, .. }
                    | RangeError { kind: RangeErrorKind::Busy, .. }
            ) | PinnedError::Alloc(AllocError::Busy)
        )
    }
}

/// Makes the device write to a frame, which the caller owns, and checks the result.
fn write(edu: &Edu, frame: Pfn, clock: &Clock) -> Result<(), PinnedError> {
    // SAFETY: the caller owns the frame, so it is mapped and has no other user.
    unsafe { FRAME_WORDS.write(frame, 0, 0) }
    edu.write(frame, clock)?;
    if holds_device_data(frame) { Ok(()) } else { Err(PinnedError::DataLost(frame)) }
}

/// Returns the frames of these ranges that the device writes to.
fn written_frames(ranges: &[PfnRange]) -> impl Iterator<Item = Pfn> {
    let blocks = ranges.iter().flat_map(|range| range.chunks(PAGEBLOCK_FRAMES as u64));
    blocks.filter_map(|block| block.start().checked_add(WRITTEN_FRAME))
}

/// Writes to each frame without changing the frame's contents, so that the host backs the frame.
/// The frame may be in use meanwhile.
fn touch(frames: PfnRange) {
    for frame in frames.chunks(1) {
        let byte = virt(frame.start().phys_addr());
        // SAFETY: the frame is online, so it is mapped. Other users of the byte access it whole.
        let byte = unsafe { AtomicU8::from_ptr(byte) };
        let value = byte.load(Relaxed);
        // A failed exchange writes nothing, but then another CPU has just written to the frame.
        let _ = byte.compare_exchange(value, value, Relaxed, Relaxed);
    }
}

fn alloc(request: AllocRequest) -> Result<PfnRange, PinnedError> {
    alloc_frames(request).map_err(PinnedError::Alloc)
}

fn free(frames: PfnRange) {
    // SAFETY: `alloc` has allocated the frames, and they are freed once, so freeing cannot fail.
    must("pinned memory", unsafe { FRAMES.fill_and_free_raw(frames) });
}

fn data_word(index: u64) -> u64 {
    !index << 32 | index
}

/// Returns whether a frame, which the caller owns, holds the data that the device wrote.
fn holds_device_data(frame: Pfn) -> bool {
    // SAFETY: the caller owns the frame, and the device has finished its transfer.
    (0..Edu::WORDS).all(|index| unsafe { FRAME_WORDS.read(frame, index) } == data_word(index))
}

impl From<TransferUnfinished> for PinnedError {
    fn from(_: TransferUnfinished) -> Self {
        PinnedError::TransferUnfinished
    }
}

impl fmt::Display for PinnedError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PinnedError::Alloc(error) => error.fmt(f),
            PinnedError::Pin(error) => error.fmt(f),
            PinnedError::TransferUnfinished => f.write_str("the device does not finish a transfer"),
            PinnedError::DataLost(frame) => {
                write!(f, "frame {:#x} does not hold what the device wrote", frame.number())
            }
        }
    }
}
