//! Implements the host of free page reporting. The host overwrites reported memory, refuses and
//! loses some batches, and is sometimes reset.

use crate::allocations::Allocations;
use crate::{BOOT_SECTIONS, WORKERS};
use fastrand::Rng;
use hotmem::report::{Batch, Reporter, ReporterSettings, Step};
use hotmem::{Bytes, Contents, geometry::FRAME_SIZE};
use hotmem_testkit::Validated as _;
use hotmem_testkit::{Cpus, PAGEBLOCK, SECTION, numbers};
use std::fmt;
use std::time::{Duration, Instant};

pub(crate) struct Host<'f, 's> {
    allocations: &'s Allocations<'f>,
    reporter: Reporter<'f, Cpus>,
    /// The batches that the host has not answered.
    unanswered_batches: Vec<Batch>,
    rng: Rng,
    started: Instant,
    counts: HostCounts,
}

/// Counts of completed actions.
#[derive(Clone, Copy, Default, Debug)]
#[allow(dead_code, reason = "printed by Debug")]
struct HostCounts {
    reported_batches: u64,
    refused_batches: u64,
    lost_batches: u64,
    resets: u64,
    reporter_switches: u64,
}

/// Returns settings that limit the reporting memory, so that limited rounds always find free
/// memory.
fn settings() -> ReporterSettings {
    ReporterSettings {
        max_reporting: Bytes(BOOT_SECTIONS * SECTION / 4 * FRAME_SIZE),
        reporting_divisor: 1,
        retry_pause: Duration::ZERO,
        max_refusals: u32::MAX,
        ..ReporterSettings::EAGER
    }
}

impl<'f, 's> Host<'f, 's> {
    pub(crate) fn new(allocations: &'s Allocations<'f>, rng: Rng) -> Self {
        let reporter = Reporter::new(allocations.frames, settings(), Contents::Undefined).unwrap();
        let (unanswered_batches, counts) = (Vec::new(), HostCounts::default());
        Host { allocations, reporter, unanswered_batches, rng, started: Instant::now(), counts }
    }

    pub(crate) fn step(&mut self) {
        Cpus::run_on(WORKERS + 1);
        match self.rng.u32(..300) {
            0 => self.reset(),
            1 => {
                self.reporter.set_on(self.rng.u8(..4) != 0);
                self.counts.reporter_switches += 1;
            }
            2 => {
                let min_free_time = Duration::from_millis(self.rng.u64(..3));
                let max_range_size =
                    Bytes(self.rng.u64(1..=SECTION / PAGEBLOCK) * PAGEBLOCK * FRAME_SIZE);
                let max_batch_ranges = self.rng.usize(1..=8);
                let reporting_divisor = [1, 8][self.rng.usize(..2)];
                let settings = ReporterSettings {
                    min_free_time,
                    max_range_size,
                    max_batch_ranges,
                    reporting_divisor,
                    ..settings()
                };
                self.reporter.settings = settings;
            }
            3..150 => match self.reporter.step(self.started.elapsed()) {
                Step::Ready(Ok(batch)) => self.unanswered_batches.push(batch),
                _ => std::thread::yield_now(),
            },
            _ => self.answer_batch(),
        }
    }

    fn answer_batch(&mut self) {
        if self.unanswered_batches.is_empty() {
            return;
        }
        let batch =
            self.unanswered_batches.swap_remove(self.rng.usize(..self.unanswered_batches.len()));
        self.discard(&batch);
        match self.rng.u8(..16) {
            0 => {
                self.counts.lost_batches += 1;
                drop(batch);
            }
            1..4 => {
                self.counts.refused_batches += 1;
                self.reporter.failed(batch, self.started.elapsed());
            }
            _ => {
                self.counts.reported_batches += 1;
                self.reporter.reported(batch);
            }
        }
    }

    fn discard(&self, batch: &Batch) {
        for &range in batch {
            self.allocations.assert_unowned(range);
            numbers(range).for_each(|frame| self.allocations.mark_discarded(frame));
        }
    }

    fn reset(&mut self) {
        // Drop the batches first: after the reset the host must not access their memory.
        self.unanswered_batches.clear();
        self.reporter.reset();
        self.counts.resets += 1;
    }

    /// Takes all memory back, and then reports all free memory. No other thread may run.
    pub(crate) fn report_all(&mut self) {
        self.reset();
        self.reporter.set_on(true);
        self.reporter.settings = settings();
        loop {
            match self.reporter.step(self.started.elapsed()) {
                Step::Ready(Ok(batch)) => {
                    self.discard(&batch);
                    self.reporter.reported(batch);
                }
                Step::Idle => break,
                Step::Working | Step::Pending(_) => {}
                step => panic!("{step:?} although no memory is reporting"),
            }
        }
        let counts = self.allocations.frames.validated().unwrap_or_else(|fault| panic!("{fault}"));
        assert_eq!((counts.reported, counts.reporting), (counts.free_whole, 0));
    }

    pub(crate) fn has_done_everything(&self) -> bool {
        let HostCounts { reported_batches, refused_batches, resets, .. } = self.counts;
        [reported_batches, refused_batches, resets].iter().all(|&count| count > 0)
    }
}

impl fmt::Debug for Host<'_, '_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.counts)
    }
}
