//! What the driver asks of the kernel's memory manager.

use super::message::Ranges;
use super::statistics::MemoryStatistics;
use core::time::Duration;
use hotmem::PfnRange;

pub use crate::mem::Obstacle;

/// The kernel's side of giving memory to the host and getting it back.
///
/// A kernel implements what it negotiates: reports alone take two methods.
///
/// All methods are called from [`Driver::step`](super::Driver::step), in its caller's context.
pub trait Memory {
    /// Takes up to `most` frames in one piece out of use, for the balloon. They lie below 16 TiB,
    /// because the protocol has 32 bits for a frame's number (5.5.6).
    ///
    /// This is where a kernel keeps what it needs for itself: the host may want everything.
    ///
    /// # Errors
    /// Nothing is taken.
    fn inflate(&mut self, most: u64) -> Result<PfnRange, Obstacle> {
        let _ = most;
        Err(Obstacle::Never("this kernel has no balloon"))
    }

    /// The range, which [`inflate`](Memory::inflate) returned, was not given to the host: it may
    /// be used again. The driver refuses what lies too high, or is not what it asked for.
    fn inflate_refused(&mut self, range: PfnRange) {
        let _ = range;
    }

    /// Chooses up to `most` frames of the balloon, in one piece, that the host is to give back.
    /// They stay in the balloon until [`deflated`](Memory::deflated). What is
    /// [wanted back](Memory::wanted_back) comes first.
    fn deflate(&mut self, most: u64) -> Option<PfnRange> {
        let _ = most;
        None
    }

    /// The host has given the range back: it may be used again. Its contents are undefined; where
    /// `PAGE_POISON` is negotiated, the kernel fills it before anybody else sees it (5.5.6.6).
    fn deflated(&mut self, range: PfnRange) {
        let _ = range;
    }

    /// Returns how many frames of the balloon the kernel wants back. Called in every step.
    fn wanted_back(&self) -> WantedBack {
        WantedBack::default()
    }

    /// Takes free memory that the host may have, in at most `most_ranges` ranges, which is what the
    /// device takes at a time. Nobody may use the memory until [`reported`](Memory::reported) is
    /// called; this is not called again before that.
    fn next_report(&mut self, now: Duration, most_ranges: usize) -> NextReport {
        let _ = (now, most_ranges);
        NextReport::Idle
    }

    /// The host has taken the last report.
    fn reported(&mut self) {}

    /// Takes some free memory out of use, which a migration need not carry; `None` if there is no
    /// more. It should stay out of use until [`release_hints`](Memory::release_hints): memory that
    /// is written to is carried after all. A kernel that needs it sooner may use it after
    /// [`hinted`](Memory::hinted), and must write to it before it reads.
    fn next_hint(&mut self) -> Option<PfnRange> {
        None
    }

    /// The device has taken the last hint.
    ///
    /// The specification lets a driver use memory before that (5.5.6.5.1). Firecracker discards it
    /// when it comes to the hint, whatever was written to it by then.
    fn hinted(&mut self) {}

    /// The migration is over: all that was hinted may be used again.
    fn release_hints(&mut self) {}

    /// Returns statistics of the kernel's memory. The first answer decides which fields are sent.
    fn statistics(&mut self) -> MemoryStatistics {
        MemoryStatistics::default()
    }

    /// The device was reset and accesses no memory any more. The balloon, the report that was not
    /// answered and all hints belong to the kernel again. Whoever resets the device calls this.
    fn device_reset(&mut self) {}
}

/// How much of the balloon the kernel wants back. All counts are frames.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WantedBack {
    /// Because it runs out of memory. Ignored unless `DEFLATE_ON_OOM` is negotiated.
    pub needed: u64,
    /// Because these very frames stand in the way of something, such as unplugging: others can go
    /// into the balloon instead.
    pub in_the_way: u64,
}

/// What there is to report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NextReport {
    /// These ranges.
    Report(Ranges),
    /// The search is not over: call again when convenient.
    Again,
    /// Nothing before this time.
    WaitUntil(Duration),
    /// Nothing until the kernel frees memory, and steps the driver because of it.
    Idle,
}
