//! Defines how soon and how much the reporter reports.

use super::MAX_BATCH;
use crate::addr::Bytes;
use crate::geometry::{FRAME_SHIFT, PAGEBLOCK_FRAMES, SECTION_FRAMES};
use core::time::Duration;

const PAGEBLOCK: u64 = (PAGEBLOCK_FRAMES as u64) << FRAME_SHIFT;
const SECTION: u64 = (SECTION_FRAMES as u64) << FRAME_SHIFT;

/// How soon and how much a [`Reporter`](super::Reporter) reports. A value outside its permitted
/// range counts as the nearest permitted value.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ReporterSettings {
    /// The maximum number of ranges in a batch: 1 to [`MAX_BATCH`]. A driver lowers this to the
    /// number that its host accepts.
    pub max_batch_ranges: usize,
    /// The maximum length of a range: 2 MiB to a section (128 MiB).
    pub max_range_size: Bytes,
    /// The maximum amount of memory that may be reporting at one time, in all batches together; at
    /// least 2 MiB.
    pub max_reporting: Bytes,
    /// At most 1/`reporting_divisor` of free memory is reporting at one time, in all batches
    /// together. No memory is reporting while fewer than `reporting_divisor` pageblocks are free.
    /// This holds for each zone of each node, so that enough memory is left to allocate from if a
    /// host never answers. If this is 1, all free memory may be reporting: choose 1 only for
    /// kernels that can wait for the host.
    pub reporting_divisor: u64,
    /// The time that the host may take to answer. After that, the reporter asks the kernel to reset
    /// the host's device ([`Unanswered`](super::Unanswered)).
    pub answer_timeout: Duration,
    /// Reporting starts only when at least this much free memory is unreported. A smaller amount
    /// stays unreported until it is allocated or until more memory becomes free.
    pub min_unreported: Bytes,
    /// The time from waking an idle reporter until it first counts the free memory that is
    /// unreported.
    pub wake_delay: Duration,
    /// The time for which a pageblock must have stayed free before it is reported. This keeps
    /// memory that is allocated again and again from being reported and faulted in each time. If
    /// this is 0, a pageblock is reported at once.
    pub min_free_time: Duration,
    /// The maximum amount of memory that is reported in a second, at least one byte; `None` if there
    /// is no maximum. A batch has at least one pageblock, so at a lower rate than 2 MiB, the reporter
    /// waits for longer than a second after each batch.
    pub max_per_second: Option<Bytes>,
    /// The amount of free memory, in whole pageblocks, that stays unreported on each node, so that
    /// the next allocations cause no page fault in the host. The reporter counts free memory before
    /// each batch, on a large machine in several steps. If memory is allocated between these steps,
    /// less than this amount may stay unreported.
    pub keep_free: Bytes,
    /// The pause after the host has refused a batch. It doubles with each further refusal in a row.
    pub retry_pause: Duration,
    /// The number of refusals in a row after which the reporter switches itself off.
    pub max_refusals: u32,
}

impl Default for ReporterSettings {
    fn default() -> ReporterSettings {
        ReporterSettings::DEFAULT
    }
}

impl ReporterSettings {
    const DEFAULT: ReporterSettings = ReporterSettings {
        max_batch_ranges: 32,
        max_range_size: Bytes(SECTION),
        max_reporting: Bytes::gib(1),
        reporting_divisor: 8,
        answer_timeout: Duration::from_secs(10),
        min_unreported: Bytes(PAGEBLOCK),
        wake_delay: Duration::from_millis(50),
        min_free_time: Duration::from_millis(400),
        max_per_second: None,
        keep_free: Bytes::mib(32),
        retry_pause: Duration::from_millis(100),
        max_refusals: 8,
    };

    /// ReporterSettings that report all free memory at once, as far as the
    /// [`reporting_divisor`](ReporterSettings::reporting_divisor) allows.
    pub const EAGER: ReporterSettings = ReporterSettings {
        wake_delay: Duration::ZERO,
        min_free_time: Duration::ZERO,
        keep_free: Bytes::ZERO,
        max_reporting: Bytes::gib(1024),
        ..ReporterSettings::DEFAULT
    };

    pub(super) fn max_ranges(&self) -> usize {
        self.max_batch_ranges.clamp(1, MAX_BATCH)
    }

    /// Returns the maximum length of a range in pageblocks.
    pub(super) fn max_range_blocks(&self) -> u64 {
        (self.max_range_size.0.clamp(PAGEBLOCK, SECTION)) / PAGEBLOCK
    }

    /// Returns the maximum number of pageblocks that may be reporting.
    pub(super) fn max_reporting_blocks(&self) -> u64 {
        (self.max_reporting.0 / PAGEBLOCK).max(1)
    }

    /// Returns the number of pageblocks that must be free for each one that is reporting.
    pub(super) fn free_blocks_per_reporting(&self) -> u64 {
        self.reporting_divisor.max(1)
    }

    /// Returns how many free pageblocks must be unreported before reporting starts.
    pub(super) fn min_unreported_blocks(&self) -> u64 {
        self.min_unreported.0.div_ceil(PAGEBLOCK).max(1)
    }

    /// Returns the number of free pageblocks that stay unreported on each node.
    pub(super) fn kept_blocks(&self) -> u64 {
        self.keep_free.0.div_ceil(PAGEBLOCK)
    }

    /// Returns the maximum number of pageblocks of a batch: those that the rate allows in one
    /// second.
    pub(super) fn max_batch_blocks(&self) -> u64 {
        self.max_per_second.map_or(u64::MAX, |rate| (rate.0 / PAGEBLOCK).max(1))
    }

    /// Returns the time that `blocks` pageblocks take at the rate; 0 if there is no maximum rate.
    pub(super) fn time_at_max_rate(&self, blocks: u64) -> Duration {
        let Some(rate) = self.max_per_second else { return Duration::ZERO };
        let nanoseconds =
            u128::from(blocks) * u128::from(PAGEBLOCK) * 1_000_000_000 / u128::from(rate.0.max(1));
        u64::try_from(nanoseconds).map_or(Duration::MAX, Duration::from_nanos)
    }

    /// Returns the pause after this many refusals in a row.
    pub(super) fn pause_after(&self, refusals: u32) -> Duration {
        self.retry_pause.saturating_mul(1 << refusals.saturating_sub(1).min(16))
    }
}
