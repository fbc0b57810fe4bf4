//! Defines how soon and how much the reporter reports.

use super::MAX_BATCH;
use crate::addr::Bytes;
use crate::geometry::{FRAME_SHIFT, PAGEBLOCK_FRAMES, SECTION_FRAMES};
use core::time::Duration;

const PAGEBLOCK: u64 = (PAGEBLOCK_FRAMES as u64) << FRAME_SHIFT;
const SECTION: u64 = (SECTION_FRAMES as u64) << FRAME_SHIFT;

/// How soon and how much a [`Reporter`](super::Reporter) reports. A value that is out of range
/// counts as the nearest one in range.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Settings {
    /// The maximum number of ranges in a batch: 1 to [`MAX_BATCH`]. A driver lowers it to what its
    /// host takes.
    pub batch: usize,
    /// The maximum length of a range: 2 MiB to a section (128 MiB).
    pub longest: Bytes,
    /// The maximum amount of memory that may be out at one time, in all batches together; at least
    /// 2 MiB.
    pub most_out: Bytes,
    /// At most 1/`share` of free memory is out at one time, in all batches together, and none while
    /// fewer than `share` pageblocks are free. This holds for each zone of each node, so that a
    /// host that never answers leaves enough to allocate from. 1: all free memory may be out, for
    /// kernels that can wait for the host.
    pub share: u64,
    /// How long the host may leave memory without an answer before the kernel is asked to reset it
    /// ([`Unanswered`](super::Unanswered)).
    pub patience: Duration,
    /// The least amount of memory that must wait to be reported before a round starts; less than
    /// that is left for its next user.
    pub threshold: Bytes,
    /// The time from waking an idle reporter to its first count.
    pub delay: Duration,
    /// How long a pageblock must have stayed free before it is reported, so that memory that is
    /// allocated again and again is not reported and faulted in each time. Zero: no time.
    pub dwell: Duration,
    /// The maximum amount of memory that is reported in a second. `None`: as much as the host
    /// takes.
    pub rate: Option<Bytes>,
    /// The amount of free memory, in whole pageblocks, that is not reported on each node, so that
    /// the next allocations find it without a page fault in the host. It is counted before each
    /// batch, on a large machine in several steps: memory that is allocated between the steps
    /// reduces it.
    pub keep_free: Bytes,
    /// The pause after the host has refused a batch; it doubles with each refusal in a row.
    pub retry: Duration,
    /// The number of refusals in a row that switches the reporter off.
    pub tries: u32,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings::DEFAULT
    }
}

impl Settings {
    const DEFAULT: Settings = Settings {
        batch: 32,
        longest: Bytes(SECTION),
        most_out: Bytes::gib(1),
        share: 8,
        patience: Duration::from_secs(10),
        threshold: Bytes(PAGEBLOCK),
        delay: Duration::from_millis(50),
        dwell: Duration::from_millis(400),
        rate: None,
        keep_free: Bytes::mib(32),
        retry: Duration::from_millis(100),
        tries: 8,
    };

    /// Settings with which memory is reported at once, as much as the [`share`](Settings::share)
    /// allows, and none is kept back.
    pub const EAGER: Settings = Settings {
        delay: Duration::ZERO,
        dwell: Duration::ZERO,
        keep_free: Bytes::ZERO,
        most_out: Bytes::tib(1),
        ..Settings::DEFAULT
    };

    pub(super) fn most_ranges(&self) -> usize {
        self.batch.clamp(1, MAX_BATCH)
    }

    /// Returns the maximum length of a range in pageblocks.
    pub(super) fn longest_blocks(&self) -> u64 {
        (self.longest.0.clamp(PAGEBLOCK, SECTION)) / PAGEBLOCK
    }

    /// Returns how many pageblocks may be out.
    pub(super) fn most_blocks(&self) -> u64 {
        (self.most_out.0 / PAGEBLOCK).max(1)
    }

    /// Returns how many pageblocks must be free for one to be out.
    pub(super) fn least_free(&self) -> u64 {
        self.share.max(1)
    }

    /// Returns how many pageblocks must wait before a round starts.
    pub(super) fn threshold_blocks(&self) -> u64 {
        self.threshold.0.div_ceil(PAGEBLOCK).max(1)
    }

    /// Returns how many free pageblocks stay unreported on a node.
    pub(super) fn kept_blocks(&self) -> u64 {
        self.keep_free.0.div_ceil(PAGEBLOCK)
    }

    /// Returns how many pageblocks a batch may have at this rate: those of one second.
    pub(super) fn most_at_once(&self) -> u64 {
        self.rate.map_or(u64::MAX, |rate| (rate.0 / PAGEBLOCK).max(1))
    }

    /// Returns how long this many pageblocks take at this rate.
    pub(super) fn time_for(&self, blocks: u64) -> Duration {
        let Some(rate) = self.rate else { return Duration::ZERO };
        let nanoseconds =
            u128::from(blocks) * u128::from(PAGEBLOCK) * 1_000_000_000 / u128::from(rate.0.max(1));
        u64::try_from(nanoseconds).map_or(Duration::MAX, Duration::from_nanos)
    }

    /// Returns the pause after this many refusals in a row.
    pub(super) fn pause_after(&self, refusals: u32) -> Duration {
        self.retry.saturating_mul(1 << refusals.saturating_sub(1).min(16))
    }
}
