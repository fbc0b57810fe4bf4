//! Defines the interface of the driver to the kernel's memory manager.

use super::frame_list::FrameList;
use super::message::Ranges;
use super::statistics::MemoryStatistics;
use core::time::Duration;
use hotmem::{PfnRange, Progress};

pub use crate::mem::{Obstacle, Reason};

/// The kernel's side of giving memory to the host and getting it back.
///
/// A kernel implements the methods for the features that it negotiates. For reports alone, two
/// methods are enough.
///
/// All methods are called from [`Driver::step`](super::Driver::step), in its caller's context.
pub trait Memory {
    /// Takes frames out of use, for the balloon, and [pushes](FrameList::push) them to `frames`, which
    /// is empty and has room for as many as the driver wants now. Fewer will do, and they need not be
    /// adjacent: the driver calls again for the rest. They must lie below 16 TiB, because the
    /// protocol has 32 bits for a frame's number (5.5.6).
    ///
    /// A kernel must refuse to give memory that it needs for itself, because the host may request
    /// all memory.
    ///
    /// # Errors
    /// The obstacle. It counts only if no frame was pushed.
    fn inflate(&mut self, frames: &mut FrameList) -> Result<(), Obstacle> {
        let _ = frames;
        Err(Obstacle::Never(Reason::Other("this kernel has no balloon")))
    }

    /// Learns that the device has taken all frames of the last call of
    /// [`inflate`](Memory::inflate). The device says that those in
    /// [`frames.initialised()`](FrameList::initialised) hold the poison value if `PAGE_POISON` is
    /// negotiated, and otherwise zeroes, until they are [deflated](Memory::deflated). There are
    /// none unless `DEVICE_INIT_ON_INFLATE` is negotiated. The draft of this feature does not say
    /// what they hold after a reset of the device.
    fn inflated(&mut self, frames: &FrameList) {
        let _ = frames;
    }

    /// Chooses frames of the balloon that the host should give back, and pushes them to `frames`,
    /// which is empty and has room for as many as are to leave now. The frames stay in the balloon
    /// until [`deflated`](Memory::deflated) is called, which happens before the next call. Frames
    /// that are [to be deflated](Memory::deflate_request) are chosen first.
    fn deflate(&mut self, frames: &mut FrameList) {
        let _ = frames;
    }

    /// Takes back all frames that the last call of [`deflate`](Memory::deflate) has chosen: the
    /// host has given them back. The contents of the memory are undefined, except for what the
    /// device has [initialised](Memory::inflated). If `PAGE_POISON` is negotiated, the kernel must
    /// fill all other memory with the poison value before it uses the memory (5.5.6.6).
    fn deflated(&mut self, frames: &FrameList) {
        let _ = frames;
    }

    /// Returns how many frames of the balloon the kernel requests back. The driver calls this in
    /// every step.
    fn deflate_request(&self) -> DeflateRequest {
        DeflateRequest::default()
    }

    /// Takes free memory to report, in at most `max_ranges` ranges, the limit of the device. The
    /// memory must stay out of use until [`report_answered`](Memory::report_answered) is called. The
    /// driver does not call `next_report` again before that. If no memory is to be reported, returns
    /// that reporting is pending until a time, or idle until the kernel frees memory and steps the
    /// driver.
    fn next_report(&mut self, now: Duration, max_ranges: usize) -> Progress<Ranges, Duration> {
        let _ = (now, max_ranges);
        Progress::Idle
    }

    /// Ends the last report, which the host has taken. Its memory may be used again. The device says that
    /// the first `initialised` frames of the report, in the order of its ranges, hold the poison value if
    /// `PAGE_POISON` is negotiated, and otherwise zeroes. `initialised` is 0 unless
    /// `DEVICE_INIT_REPORTED` is negotiated.
    fn report_answered(&mut self, initialised: u64) {
        let _ = initialised;
    }

    /// Takes free memory out of use, to hint it. Returns `None` if no more memory can be hinted.
    /// The memory should stay out of use until [`release_hints`](Memory::release_hints) is called,
    /// because a migration copies memory that is written to. A kernel that needs the memory sooner
    /// may use it after [`hint_answered`](Memory::hint_answered) was called, and must write to it
    /// before reading from it.
    fn next_hint(&mut self) -> Option<PfnRange> {
        None
    }

    /// Ends the last hint, which the device has taken.
    ///
    /// The specification allows a driver to use the memory earlier (5.5.6.5.1). But Firecracker
    /// discards the memory when it processes the hint, even if the guest has written to the memory
    /// meanwhile.
    fn hint_answered(&mut self) {}

    /// Lets the kernel use all hinted memory again, because the migration has ended.
    fn release_hints(&mut self) {}

    /// Returns statistics of the kernel's memory. The driver always sends the statistics that the
    /// first call with any returned, with new values. Until then, the device gets a buffer without any that
    /// it knows. A kernel should have them at the first call, because a driver must supply the same statistics
    /// in all buffers (5.5.6.3.1).
    fn statistics(&mut self) -> MemoryStatistics {
        MemoryStatistics::default()
    }

    /// Takes back all memory from the device, which was reset and accesses no memory any more: the
    /// balloon, an outstanding report and all hints. Each driver calls this at its first step, so
    /// that the kernel's balloon is empty when the driver's is. Code that resets the device, and
    /// starts no driver afterwards, calls it as well.
    fn device_reset(&mut self) {}
}

/// The kernel's request to deflate the balloon, in frames.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeflateRequest {
    /// The number of frames that the kernel needs because it runs out of memory. The driver ignores
    /// this number if `DEFLATE_ON_OOM` is not negotiated.
    pub needed_frames: u64,
    /// The number of frames in the balloon that must leave it, for example because they are to be
    /// unplugged. Other frames may replace them in the balloon.
    pub frames_to_replace: u64,
}
