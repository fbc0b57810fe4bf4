//! Makes the engine the driver's memory manager.
//!
//! Reports are batches of the engine's reporter. Memory in the balloon, and hinted memory, is
//! allocated from the movable zone, because any other frame can take its place:
//! [`EngineMemory::migrate`] replaces frames in the balloon, and frees hinted memory.
//!
//! Which frames the device holds is recorded by the engine's [`LentMemory`], in bitmaps. So however
//! fragmented the memory is, the balloon takes all that the host requests: whole pageblocks first,
//! because the host discards them best, then single frames.

use super::features::{Features, Poison};
use super::frame_list::FrameList;
use super::initialised::InitialisedMemory;
use super::lend::{free_all_but, lend};
use super::memory::{DeflateRequest, Memory, Obstacle, Reason};
use super::message::Ranges;
use super::statistics::{MemoryStatistics, Statistic};
use core::fmt;
use core::time::Duration;
use hotmem::geometry::{FRAME_SIZE, PAGEBLOCK_FRAMES, SECTION_FRAMES};
use hotmem::report::{Batch, Reporter, ReporterError, ReporterSettings, Step, Unanswered};
use hotmem::{
    AllocError, AllocRequest, Contents, Frames, LentMemory, Migration, Pfn, PfnRange, Platform,
    Progress,
};
use hotmem_invariant::OrRecordViolation;

/// The driver's memory manager. It allocates memory of the engine for one balloon device, and records
/// the memory that the device holds, in any number of ranges. The record takes one frame for each
/// section (128 MiB) in which the device holds a frame.
///
/// It must live as long as the device's driver, across resets of the device. If it is dropped,
/// memory that the device holds stays allocated, because the host may still access it.
pub struct EngineMemory<'f, P: Platform> {
    frames: &'f Frames<P>,
    reporter: Option<Reporter<'f, P>>,
    sent_batch: Option<Batch>,
    initialised: InitialisedMemory,
    balloon: LentMemory<'f, P>,
    hints: LentMemory<'f, P>,
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

const BLOCK: u64 = PAGEBLOCK_FRAMES as u64;
/// The free memory above `min_free`, divided by this number, may be given to the host before free
/// memory is counted again. Counting reads every section.
const CREDIT_DIVISOR: u64 = 8;
/// Frames that stay free for the record of the next range, beside `min_free`.
const RECORD_FRAMES: u64 = 8;
const ALL_FRAMES: PfnRange = match PfnRange::new(Pfn::ZERO, Pfn::LIMIT) {
    Some(range) => range,
    None => PfnRange::EMPTY,
};

impl<'f, P: Platform> EngineMemory<'f, P> {
    /// Makes a memory manager without reports. At least `min_free` frames stay with the guest.
    #[must_use]
    pub fn new(frames: &'f Frames<P>, min_free: u64) -> Self {
        EngineMemory {
            frames,
            reporter: None,
            sent_batch: None,
            initialised: InitialisedMemory::NONE,
            balloon: LentMemory::new(frames),
            hints: LentMemory::new(frames),
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
    /// Call this with the negotiated features also if reports are not among them. Until it is
    /// called, nothing that the device has initialised is known to be zero.
    ///
    /// # Errors
    /// There is another reporter, or the host could destroy values that free memory must hold.
    pub fn report(
        &mut self,
        features: Features,
        poison: Poison,
        settings: ReporterSettings,
    ) -> Result<(), ReporterError> {
        let contents = poison.contents(features);
        self.initialised.set_contents(contents);
        if !features.contains(Features::PAGE_REPORTING) {
            return Ok(());
        }
        let mut reporter = Reporter::new(self.frames, settings, contents)?;
        reporter.reset();
        self.reporter = Some(reporter);
        Ok(())
    }

    /// Takes all memory of each answered report as initialised from now on, whatever the device
    /// says. For a device without `DEVICE_INIT_REPORTED` whose operator vouches for it: otherwise
    /// the kernel uses old data as zeroes, and the promise of [`Frames::keep_zero_marks`] is
    /// broken. QEMU discards anonymous memory, which reads as zero afterwards. But it keeps the
    /// memory, and answers all the same, while a device of the host is passed through, in a postcopy
    /// migration, and if pages of the memory are larger than the report.
    pub fn assume_initialised_reports(&mut self) {
        self.initialised.assume_all();
    }

    /// Returns the reporter, to query it and to change its settings.
    pub fn reporter(&mut self) -> Option<&mut Reporter<'f, P>> {
        self.reporter.as_mut()
    }

    /// Requests `frames` frames from the balloon, because the kernel runs out of memory; 0 ends the
    /// request. For the kernel's out-of-memory path, and before a plug is refused because no memory
    /// is free for its page tables.
    ///
    /// Hints that the device has taken are released at once. The balloon is deflated only if
    /// `DEFLATE_ON_OOM` is negotiated: step the driver until the balloon has become smaller or
    /// empty, then try the allocation again. The lowest frames come back first, because movable
    /// memory, which mostly lies higher, cannot serve every request. Until the request ends, the
    /// balloon does not grow.
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
            if hint.overlaps(self.outstanding_hint) || self.hints.free(hint).is_err() {
                return Some(Migration::Retry);
            }
            return Some(Migration::Freed);
        }
        if self.balloon.highest_in(used, 1).is_none() {
            let records = [&mut self.balloon, &mut self.hints];
            let moved = records.map(|lent| lent.move_record(used));
            return match moved {
                [Ok(false), Ok(false)] => None,
                [Err(_), _] | [_, Err(_)] => Some(Migration::Retry),
                _ => Some(Migration::Moved),
            };
        }
        // The whole pageblock is to be removed.
        let block = used.align_outward(BLOCK);
        if !self.range_to_remove.covers(block) {
            // If the caller continues below the last range, replace twice as many frames, up to a
            // section.
            let continues_below = block.end() == self.replaced_range.start();
            let previous_frames = if continues_below { self.replaced_range.frames() } else { 0 };
            let frames = (2 * previous_frames).clamp(BLOCK, SECTION_FRAMES as u64);
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
        free_all_but(&mut self.hints, self.outstanding_hint);
    }

    /// Takes the reporter's next batch into `sent_batch`. The caller copies the ranges, so that the
    /// reporter's step does not run on top of the copies.
    #[inline(never)]
    fn take_batch(&mut self, now: Duration, max_ranges: usize) -> Progress<(), Duration> {
        let Some(reporter) = &mut self.reporter else { return Progress::Idle };
        let batch = &mut reporter.settings.max_batch_ranges;
        *batch = max_ranges.min(Ranges::MAX_LEN).min(*batch);
        match reporter.step(now) {
            // A batch has at most `max_batch_ranges` ranges, so all of them fit. If they did not, the
            // batch would be given back, and none of it sent.
            Step::Ready(Ok(batch)) if batch.len() > Ranges::MAX_LEN => {
                reporter.failed(batch, now);
                Progress::Working
            }
            Step::Ready(Ok(batch)) => {
                self.sent_batch = Some(batch);
                Progress::Ready(())
            }
            Step::Working => Progress::Working,
            Step::Pending(until) => Progress::Pending(until),
            // The driver handles a device that does not answer.
            Step::Ready(Err(Unanswered)) | Step::Idle => Progress::Idle,
        }
    }

    /// Returns whether this many frames may be given to the host.
    fn may_spare(&mut self, frames: u64) -> bool {
        if self.frames_before_recount < frames {
            let kept = self.min_free.saturating_add(RECORD_FRAMES);
            let frames_above_min = self.frames.counts().free.saturating_sub(kept);
            // At least one range may be given to the host if `min_free` frames stay free.
            self.frames_before_recount =
                (frames_above_min / CREDIT_DIVISOR).max(frames_above_min.min(frames));
        }
        self.frames_before_recount >= frames
    }

    /// Allocates `frames` frames for the balloon.
    fn lend_to_balloon(&mut self, frames: u64) -> Result<PfnRange, AllocError> {
        let avoid = [self.range_to_remove];
        let range = lend(&mut self.balloon, AllocRequest::frames(frames), &avoid)?;
        self.frames_before_recount -= frames;
        Ok(range)
    }
}

impl<P: Platform> Memory for EngineMemory<'_, P> {
    fn inflate(&mut self, frames: &mut FrameList) -> Result<(), Obstacle> {
        if self.needed_frames > 0 {
            return Err(Obstacle::Later(Reason::Other("the guest needs the memory")));
        }
        if frames.room() as u64 >= BLOCK
            && self.may_spare(BLOCK)
            && let Ok(range) = self.lend_to_balloon(BLOCK)
        {
            // The list has room, and `lend` allocates no frame that lies too high.
            frames.push(range).or_record_violation();
            return Ok(());
        }
        while frames.room() > 0 {
            if !self.may_spare(1) {
                return Err(Obstacle::Later(Reason::Other(
                    "the guest has no free memory above its minimum",
                )));
            }
            let range = self.lend_to_balloon(1);
            let range = range.map_err(|_| Obstacle::Later(Reason::Other("no free memory")))?;
            frames.push(range).or_record_violation();
        }
        Ok(())
    }

    fn inflated(&mut self, frames: &FrameList) {
        if self.initialised.contents() == Contents::Filled(0) {
            for range in frames.initialised() {
                // `inflate` has lent these frames.
                self.balloon.mark_zeroed(range).or_record_violation();
            }
        }
    }

    fn deflate(&mut self, frames: &mut FrameList) {
        if self.needed_frames > 0 {
            // The lowest frames, because kernel memory mostly lies below movable memory, and the
            // kernel may need either.
            let mut start = Pfn::ZERO;
            while let Some(run) = PfnRange::new(start, Pfn::LIMIT)
                .and_then(|rest| self.balloon.lowest_in(rest, frames.room() as u64))
            {
                // The run is at most as long as the room, and its frames were in a list before.
                frames.push(run).or_record_violation();
                start = run.end();
            }
            return;
        }
        for within in [self.range_to_remove, ALL_FRAMES] {
            let mut end = within.end();
            while let Some(run) = PfnRange::new(within.start(), end)
                .and_then(|rest| self.balloon.highest_in(rest, frames.room() as u64))
            {
                // As above.
                frames.push(run).or_record_violation();
                end = run.start();
            }
            if !frames.is_empty() {
                return;
            }
        }
    }

    fn deflated(&mut self, frames: &FrameList) {
        self.needed_frames = self.needed_frames.saturating_sub(frames.len() as u64);
        for range in frames.ranges() {
            // `deflate` has chosen frames of the balloon.
            self.balloon.free_as_promised(range).or_record_violation();
        }
        if self.balloon.highest_in(self.range_to_remove, 1).is_none() {
            self.range_to_remove = PfnRange::EMPTY;
        }
    }

    fn deflate_request(&self) -> DeflateRequest {
        DeflateRequest {
            needed_frames: self.needed_frames,
            frames_to_replace: self.balloon.frames_in(self.range_to_remove),
        }
    }

    fn next_report(&mut self, now: Duration, max_ranges: usize) -> Progress<Ranges, Duration> {
        match self.take_batch(now, max_ranges) {
            Progress::Ready(()) => {
                let ranges = self.sent_batch.as_ref().and_then(|batch| Ranges::new(batch));
                ranges.map_or(Progress::Working, Progress::Ready)
            }
            Progress::Working => Progress::Working,
            Progress::Pending(until) => Progress::Pending(until),
            Progress::Idle => Progress::Idle,
        }
    }

    fn report_answered(&mut self, initialised: u64) {
        let contents_of = self.initialised.contents_of(initialised);
        if let (Some(reporter), Some(batch)) = (&mut self.reporter, self.sent_batch.take()) {
            reporter.reported_as(batch, contents_of);
        }
    }

    fn next_hint(&mut self) -> Option<PfnRange> {
        // At most a section and at least a pageblock, because less is not worth a message.
        let sizes = [SECTION_FRAMES as u64, BLOCK];
        let mut frames =
            sizes.into_iter().find(|&frames| self.needed_frames == 0 && self.may_spare(frames))?;
        let avoid = [self.range_to_remove];
        let range = loop {
            match lend(&mut self.hints, AllocRequest::frames(frames), &avoid) {
                Ok(range) => break range,
                Err(_) if frames <= BLOCK => return None,
                Err(_) => frames /= 2,
            }
        };
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
        // No promise outlasts a reset, because the draft of the feature does not say that one does.
        free_all_but(&mut self.balloon, PfnRange::EMPTY);
        (self.needed_frames, self.range_to_remove, self.frames_before_recount) =
            (0, PfnRange::EMPTY, 0);
    }
}

impl<P: Platform> fmt::Debug for EngineMemory<'_, P> {
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
