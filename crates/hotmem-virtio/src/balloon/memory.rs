//! The interface of the driver to the kernel's memory manager.

use super::message::Ranges;
use super::statistics::MemoryStatistics;
use core::time::Duration;
use hotmem::{PfnRange, Progress};

pub use crate::mem::Obstacle;

/// The kernel's side of giving memory to the host and getting it back.
///
/// A kernel implements the methods for the features that it negotiates: reports alone need two
/// methods.
///
/// All methods are called from [`Driver::step`](super::Driver::step), in its caller's context.
pub trait Memory {
    /// Takes up to `most` contiguous frames out of use, for the balloon. They must lie below 16
    /// TiB, because the protocol has 32 bits for a frame's number (5.5.6).
    ///
    /// A kernel must refuse here what it needs for itself: the host may request all memory.
    ///
    /// # Errors
    /// The obstacle. No frames are taken.
    fn inflate(&mut self, most: u64) -> Result<PfnRange, Obstacle> {
        let _ = most;
        Err(Obstacle::Never("this kernel has no balloon"))
    }

    /// Takes back a range that [`inflate`](Memory::inflate) returned and that was not given to the
    /// host. The driver refuses ranges that lie too high or do not match its request.
    fn inflate_refused(&mut self, range: PfnRange) {
        let _ = range;
    }

    /// Chooses up to `most` contiguous frames of the balloon that the host should give back. They
    /// stay in the balloon until [`deflated`](Memory::deflated). Frames that are [wanted
    /// back](Memory::wanted_back) are chosen first.
    fn deflate(&mut self, most: u64) -> Option<PfnRange> {
        let _ = most;
        None
    }

    /// Takes back a range that the host has given back. Its contents are undefined. If
    /// `PAGE_POISON` is negotiated, the kernel must fill it before it is used (5.5.6.6).
    fn deflated(&mut self, range: PfnRange) {
        let _ = range;
    }

    /// Returns how many frames of the balloon the kernel wants back. Called in every step.
    fn wanted_back(&self) -> WantedBack {
        WantedBack::default()
    }

    /// Takes free memory to report, in at most `most_ranges` ranges, the limit of the device. The
    /// memory must stay out of use until [`reported`](Memory::reported) is called; this method is
    /// not called again before that. It is pending until a time, or idle until the kernel frees
    /// memory and steps the driver.
    fn next_report(&mut self, now: Duration, most_ranges: usize) -> Progress<Ranges, Duration> {
        let _ = (now, most_ranges);
        Progress::Idle
    }

    /// Called when the host has taken the last report.
    fn reported(&mut self) {}

    /// Takes free memory to hint out of use, or returns `None` if there is no more. It should stay
    /// out of use until [`release_hints`](Memory::release_hints), because a migration copies memory
    /// that is written to. A kernel that needs it sooner may use it after
    /// [`hinted`](Memory::hinted), and must write to it before it reads it.
    fn next_hint(&mut self) -> Option<PfnRange> {
        None
    }

    /// Called when the device has taken the last hint.
    ///
    /// The specification allows a driver to use the memory before that (5.5.6.5.1). But Firecracker
    /// discards the memory when it processes the hint, whatever was written to it meanwhile.
    fn hinted(&mut self) {}

    /// Called when the migration has ended: all hinted memory may be used again.
    fn release_hints(&mut self) {}

    /// Returns statistics of the kernel's memory. The fields of the first answer are sent each
    /// time.
    fn statistics(&mut self) -> MemoryStatistics {
        MemoryStatistics::default()
    }

    /// Takes back all memory from a device that was reset and accesses no memory any more: the
    /// balloon, an outstanding report and all hints. The code that resets the device calls this.
    fn device_reset(&mut self) {}
}

/// The part of the balloon that the kernel wants back, in frames.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WantedBack {
    /// Frames that it needs because it runs out of memory. Ignored unless `DEFLATE_ON_OOM` is
    /// negotiated.
    pub needed: u64,
    /// Specific frames that must be free for something else, such as unplugging. Other frames may
    /// replace them in the balloon.
    pub in_the_way: u64,
}
