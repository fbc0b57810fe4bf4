//! How eagerly memory is reported.

use super::MAX_BATCH;
use crate::addr::Bytes;
use crate::geometry::{FRAME_SHIFT, PAGEBLOCK_FRAMES, SECTION_FRAMES};
use core::time::Duration;

const PAGEBLOCK: u64 = (PAGEBLOCK_FRAMES as u64) << FRAME_SHIFT;
const SECTION: u64 = (SECTION_FRAMES as u64) << FRAME_SHIFT;

/// How eagerly a [`Reporter`](super::Reporter) reports. Values that make no sense are taken for the
/// nearest that do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Settings {
    /// Most ranges in a batch: 1 to [`MAX_BATCH`], and no more than the host takes
    /// ([`Reporter::step_up_to`](super::Reporter::step_up_to)).
    pub batch: usize,
    /// The longest range: 2 MiB to a section (128 MiB).
    pub longest: Bytes,
    /// Most memory out at one time, in all batches together; at least 2 MiB.
    pub most_out: Bytes,
    /// At most 1/`share` of what is free is out at one time, in all batches together, and none while
    /// fewer than `share` pageblocks are free; so in each zone of each node. Then a host that never
    /// answers leaves enough to allocate from. 1: all may be out, for kernels that can wait for the
    /// host.
    pub share: u64,
    /// How long the host may be silent while something is out, until the kernel is told to reset it
    /// ([`Step::Unanswered`](super::Step::Unanswered)).
    pub patience: Duration,
    /// A round of reporting starts only while at least this much waits; less is kept for its next
    /// user.
    pub threshold: Bytes,
    /// From the moment that an idle reporter is woken until it first looks.
    pub delay: Duration,
    /// How long a pageblock must have stayed free, so that what is allocated again and again is not
    /// reported and faulted in again and again. Zero: not at all.
    pub dwell: Duration,
    /// Most that is reported in a second. `None`: as much as the host takes.
    pub rate: Option<Bytes>,
    /// Free memory in whole pageblocks that is not reported on each node, so that what is allocated
    /// next is there at once. It is counted before each batch, on a large machine in several steps:
    /// what is allocated between them comes off it.
    pub keep_free: Bytes,
    /// The pause after the host has refused a batch; doubled with each refusal in a row.
    pub retry: Duration,
    /// So many refusals in a row switch the reporter off.
    pub tries: u32,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
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
        }
    }
}

impl Settings {
    /// At once, as much as the [`share`](Settings::share) allows, and nothing is kept back.
    #[must_use]
    pub fn eager() -> Settings {
        Settings {
            delay: Duration::ZERO,
            dwell: Duration::ZERO,
            keep_free: Bytes::ZERO,
            most_out: Bytes::tib(1),
            ..Settings::default()
        }
    }

    pub(super) fn most_ranges(&self) -> usize {
        self.batch.clamp(1, MAX_BATCH)
    }

    /// Pageblocks in the longest range.
    pub(super) fn longest_blocks(&self) -> u64 {
        (self.longest.0.clamp(PAGEBLOCK, SECTION)) / PAGEBLOCK
    }

    /// Pageblocks that may be out.
    pub(super) fn most_blocks(&self) -> u64 {
        (self.most_out.0 / PAGEBLOCK).max(1)
    }

    /// Pageblocks that must be free for one to be out.
    pub(super) fn least_free(&self) -> u64 {
        self.share.max(1)
    }

    /// Pageblocks that must wait before a round starts.
    pub(super) fn threshold_blocks(&self) -> u64 {
        self.threshold.0.div_ceil(PAGEBLOCK).max(1)
    }

    /// Pageblocks that stay on a node.
    pub(super) fn kept_blocks(&self) -> u64 {
        self.keep_free.0.div_ceil(PAGEBLOCK)
    }

    /// Pageblocks that a batch may have under the rate: what a second allows.
    pub(super) fn most_at_once(&self) -> u64 {
        self.rate.map_or(u64::MAX, |rate| (rate.0 / PAGEBLOCK).max(1))
    }

    /// How long so many pageblocks take under the rate.
    pub(super) fn time_for(&self, blocks: u64) -> Duration {
        let Some(rate) = self.rate else { return Duration::ZERO };
        let nanoseconds =
            u128::from(blocks) * u128::from(PAGEBLOCK) * 1_000_000_000 / u128::from(rate.0.max(1));
        u64::try_from(nanoseconds).map_or(Duration::MAX, Duration::from_nanos)
    }

    /// The pause after this many refusals in a row.
    pub(super) fn pause_after(&self, refusals: u32) -> Duration {
        self.retry.saturating_mul(1 << refusals.saturating_sub(1).min(16))
    }
}
