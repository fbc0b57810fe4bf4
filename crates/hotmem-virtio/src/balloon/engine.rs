//! Makes the engine the driver's memory manager.
//!
//! Reports are batches of the engine's reporter. Memory in the balloon, and hinted memory, is
//! allocated from the movable zone, because any other frame can take its place:
//! [`EngineMemory::migrate`] replaces frames in the balloon, and frees hinted memory.

mod lent;

use super::features::{Features, Poison};
use super::memory::{DeflateRequest, Memory, Obstacle, Reason};
use super::message::Ranges;
use super::range_set::RangeSet;
use super::statistics::{MemoryStatistics, Statistic};
use core::fmt;
use core::time::Duration;
use hotmem::geometry::{FRAME_SIZE, PAGEBLOCK_FRAMES, SECTION_FRAMES};
use hotmem::report::{Batch, Contents, Reporter, ReporterError, Settings, Step, Unanswered};
use hotmem::{Frames, Migration, OrViolation, Pfn, PfnRange, Platform, Progress};

/// The driver's memory manager. It allocates memory of the engine for one balloon device, and records
/// the memory that the device holds: at most `MAX_RANGES` ranges in the balloon and `MAX_RANGES`
/// ranges of hints. Each range takes 16 bytes.
///
/// It must live as long as the device's driver, across resets of the device. If it is dropped,
/// memory that the device holds stays allocated, because the host may still access it.
pub struct EngineMemory<'f, P: Platform, const MAX_RANGES: usize> {
    frames: &'f Frames<P>,
    reporter: Option<Reporter<'f, P>>,
    sent_batch: Option<Batch>,
    balloon: RangeSet<MAX_RANGES>,
    hints: RangeSet<MAX_RANGES>,
    /// The hint that the device has not answered yet.
    outstanding_hint: PfnRange,
    /// The number of frames that stay free, however much the host requests.
    min_free: u64,
    /// The number of frames that may be given away before free memory is counted again.
    frames_before_recount: u64,
    needed_frames: u64,
    /// Memory that is to be removed. Other frames replace its frames in the balloon.
    range_to_remove: PfnRange,
    /// The range whose frames in the balloon were last replaced by other frames.
    replaced_range: PfnRange,
}

impl<'f, P: Platform, const MAX_RANGES: usize> EngineMemory<'f, P, MAX_RANGES> {
    /// Makes a memory manager without reports. At least `min_free` frames stay with the guest.
    #[must_use]
    pub fn new(frames: &'f Frames<P>, min_free: u64) -> Self {
        const { assert!(MAX_RANGES > 1) };
        EngineMemory {
            frames,
            reporter: None,
            sent_batch: None,
            balloon: RangeSet::new(),
            hints: RangeSet::new(),
            outstanding_hint: PfnRange::EMPTY,
            min_free,
            frames_before_recount: 0,
            needed_frames: 0,
            range_to_remove: PfnRange::EMPTY,
            replaced_range: PfnRange::EMPTY,
        }
    }

    /// Makes a reporter of the engine with these settings, if reports are negotiated. Frees the
    /// memory that an earlier reporter gave to the device and that was still reporting when the
    /// device was reset.
    ///
    /// # Errors
    /// There is another reporter, or the host could destroy values that free memory must hold.
    pub fn report(
        &mut self,
        features: Features,
        poison: Poison,
        settings: Settings,
    ) -> Result<(), ReporterError> {
        if !features.contains(Features::PAGE_REPORTING) {
            return Ok(());
        }
        let contents = match poison {
            Poison::Filled(value) if features.contains(Features::PAGE_POISON) => {
                Contents::Filled(value)
            }
            _ => Contents::Undefined,
        };
        let mut reporter = Reporter::new(self.frames, settings, contents)?;
        reporter.reset();
        self.reporter = Some(reporter);
        Ok(())
    }

    /// Returns the reporter, to query it and to change its settings.
    pub fn reporter(&mut self) -> Option<&mut Reporter<'f, P>> {
        self.reporter.as_mut()
    }

    /// Requests `frames` frames from the balloon, because the kernel runs out of memory; 0 ends the
    /// request. The balloon is deflated only if `DEFLATE_ON_OOM` is negotiated. Hints that the
    /// device has taken are released at once. Step the driver, then try the allocation again.
    pub fn need(&mut self, frames: u64) {
        if frames > 0 {
            self.release_taken_hints();
        }
        self.needed_frames = frames;
    }

    /// Answers the engine's request to migrate `used`, or returns `None` if the range is not in the
    /// balloon or hinted. Frames in the balloon are replaced by others, which takes a few steps
    /// of the driver.
    pub fn migrate(&mut self, used: PfnRange) -> Option<Migration> {
        if let Some(hint) = self.hints.highest_in(used, u64::MAX) {
            if hint.overlaps(self.outstanding_hint) || self.hints.remove_part(hint).is_err() {
                return Some(Migration::Retry);
            }
            self.give_back(hint);
            return Some(Migration::Freed);
        }
        self.balloon.highest_in(used, 1)?;
        // The whole pageblock is to be removed.
        let block = used.align_outward(PAGEBLOCK_FRAMES as u64);
        if !self.range_to_remove.covers(block) {
            // If the caller continues below the last range, replace twice as many frames, up to a
            // section.
            let continues_below = block.end() == self.replaced_range.start();
            let previous_frames = if continues_below { self.replaced_range.frames() } else { 0 };
            let frames =
                (2 * previous_frames).clamp(PAGEBLOCK_FRAMES as u64, SECTION_FRAMES as u64);
            let start = Pfn::new(block.end().number().saturating_sub(frames));
            self.range_to_remove =
                start.and_then(|s| PfnRange::new(s, block.end())).unwrap_or(block);
            self.replaced_range = self.range_to_remove;
        }
        Some(Migration::Retry)
    }

    /// Returns the number of frames in the balloon.
    #[must_use]
    pub fn inflated_frames(&self) -> u64 {
        self.balloon.frames()
    }

    /// Returns the number of frames that stay allocated because they were hinted.
    #[must_use]
    pub fn hinted_frames(&self) -> u64 {
        self.hints.frames()
    }

    /// Releases all hints except for the one that is with the device.
    fn release_taken_hints(&mut self) {
        while let Some(range) = self.hints.pop() {
            let (below, rest) = range.split_at(self.outstanding_hint.start());
            let above = rest.split_at(self.outstanding_hint.end()).1;
            [below, above].into_iter().filter(|part| !part.is_empty()).for_each(|part| {
                self.give_back(part);
            });
        }
        if !self.outstanding_hint.is_empty() {
            // The set has room, because the loop has emptied it.
            self.hints.insert(self.outstanding_hint).or_violation();
        }
    }

    #[allow(unsafe_code, reason = "`RangeSet` keeps track of frames by number")]
    fn give_back(&mut self, range: PfnRange) {
        // SAFETY: the range was allocated here, is in no set any more, and the host has given it
        // back.
        unsafe { self.frames.fill_and_free_raw(range) }.or_violation();
    }

    /// Frees memory that was not given to the host.
    #[allow(unsafe_code, reason = "`RangeSet` keeps track of frames by number")]
    fn free(&self, range: PfnRange) {
        // SAFETY: the range was allocated here, and is in no set.
        unsafe { self.frames.free_raw(range) }.or_violation();
    }
}

impl<P: Platform, const MAX_RANGES: usize> Memory for EngineMemory<'_, P, MAX_RANGES> {
    fn inflate(&mut self, max_frames: u64) -> Result<PfnRange, Obstacle> {
        if self.needed_frames > 0 {
            return Err(Obstacle::Later(Reason::Other("the guest needs the memory")));
        }
        if !self.may_spare(max_frames) {
            return Err(Obstacle::Later(Reason::Other(
                "the guest has no free memory above its minimum",
            )));
        }
        let range = self
            .alloc_lent(max_frames, 1)
            .ok_or(Obstacle::Later(Reason::Other("no free memory")))?;
        let is_to_be_removed = range.overlaps(self.range_to_remove);
        if is_to_be_removed || self.balloon.insert(range).is_err() {
            self.free(range);
            let reason = if is_to_be_removed {
                "only memory that is to be removed is free"
            } else {
                "free memory is too fragmented"
            };
            return Err(Obstacle::Later(Reason::Other(reason)));
        }
        self.frames_before_recount -= range.frames();
        Ok(range)
    }

    fn inflate_refused(&mut self, range: PfnRange) {
        // `inflate` has inserted the range.
        if self.balloon.remove_part(range).or_violation().is_some() {
            self.free(range);
        }
    }

    fn deflate(&mut self, max_frames: u64) -> Option<PfnRange> {
        let all_frames = PfnRange::new(Pfn::ZERO, Pfn::LIMIT)?;
        let part = self.balloon.highest_removable(self.range_to_remove, max_frames);
        part.or_else(|| self.balloon.highest_removable(all_frames, max_frames))
    }

    fn deflated(&mut self, range: PfnRange) {
        self.needed_frames = self.needed_frames.saturating_sub(range.frames());
        // `deflate` has chosen a range that can be removed.
        if self.balloon.remove_part(range).or_violation().is_some() {
            self.give_back(range);
        }
        if self.balloon.highest_in(self.range_to_remove, 1).is_none() {
            self.range_to_remove = PfnRange::EMPTY;
        }
    }

    fn deflate_request(&self) -> DeflateRequest {
        let count_frames = |range: PfnRange| range.intersection(self.range_to_remove).frames();
        let frames_to_replace = if self.range_to_remove.is_empty() {
            0
        } else {
            self.balloon.iter().map(count_frames).sum()
        };
        DeflateRequest { needed_frames: self.needed_frames, frames_to_replace }
    }

    fn next_report(&mut self, now: Duration, max_ranges: usize) -> Progress<Ranges, Duration> {
        let Some(reporter) = &mut self.reporter else { return Progress::Idle };
        let batch = &mut reporter.settings.max_batch_ranges;
        *batch = max_ranges.min(Ranges::MAX_LEN).min(*batch);
        match reporter.step(now) {
            Step::Ready(Ok(batch)) => match Ranges::new(&batch) {
                Some(ranges) => {
                    self.sent_batch = Some(batch);
                    Progress::Ready(ranges)
                }
                // A batch has at most `max_batch_ranges` ranges, so all of them fit. If they did
                // not, the batch would be given back, and none of it sent.
                None => {
                    reporter.failed(batch, now).or_violation();
                    Progress::Working
                }
            },
            Step::Working => Progress::Working,
            Step::Pending(until) => Progress::Pending(until),
            // The driver handles a device that does not answer.
            Step::Ready(Err(Unanswered)) | Step::Idle => Progress::Idle,
        }
    }

    fn report_answered(&mut self) {
        if let (Some(reporter), Some(batch)) = (&mut self.reporter, self.sent_batch.take()) {
            // The batch is from this reporter.
            reporter.reported(batch).or_violation();
        }
    }

    fn next_hint(&mut self) -> Option<PfnRange> {
        // At most a section and at least a pageblock, because less is not worth a message.
        let sizes = [SECTION_FRAMES as u64, PAGEBLOCK_FRAMES as u64];
        let max_frames =
            sizes.into_iter().find(|&frames| self.needed_frames == 0 && self.may_spare(frames))?;
        let range = self.alloc_lent(max_frames, PAGEBLOCK_FRAMES as u64)?;
        if self.hints.insert(range).is_err() {
            self.free(range);
            return None;
        }
        self.frames_before_recount -= range.frames();
        self.outstanding_hint = range;
        Some(range)
    }

    fn hint_answered(&mut self) {
        self.outstanding_hint = PfnRange::EMPTY;
        if self.needed_frames > 0 {
            self.release_hints();
        }
    }

    fn release_hints(&mut self) {
        self.outstanding_hint = PfnRange::EMPTY;
        self.release_taken_hints();
    }

    fn statistics(&mut self) -> MemoryStatistics {
        let counts = self.frames.counts();
        MemoryStatistics::default()
            .with(Statistic::Free, counts.free * FRAME_SIZE)
            .with(Statistic::Total, counts.online * FRAME_SIZE)
            .with(Statistic::Available, (counts.free + self.hints.frames()) * FRAME_SIZE)
    }

    fn device_reset(&mut self) {
        self.sent_batch = None;
        if let Some(reporter) = &mut self.reporter {
            reporter.reset();
        }
        self.release_hints();
        while let Some(range) = self.balloon.pop() {
            self.give_back(range);
        }
        (self.needed_frames, self.range_to_remove, self.frames_before_recount) =
            (0, PfnRange::EMPTY, 0);
    }
}

impl<P: Platform, const MAX_RANGES: usize> fmt::Debug for EngineMemory<'_, P, MAX_RANGES> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EngineMemory")
            .field("reporter", &self.reporter)
            .field("sent_batch", &self.sent_batch)
            .field("inflated_frames", &self.balloon.frames())
            .field("hinted_frames", &self.hints.frames())
            .field("needed_frames", &self.needed_frames)
            .finish_non_exhaustive()
    }
}
