//! Defines a memory manager that checks its calls, and fails as a test has chosen.

use core::time::Duration;
use hotmem::{Pfn, PfnRange, Progress};
use hotmem_virtio::balloon::{
    DeflateRequest, FrameList, Memory, MemoryStatistics, Obstacle, Ranges, Reason, Statistic,
};
use std::collections::{BTreeSet, VecDeque};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Frame {
    /// Used by the kernel.
    Used,
    Free,
    /// In the balloon, or being inflated or deflated.
    Balloon,
    /// Chosen for the list of a deflation that is being made.
    Deflating,
    /// In a report that is with the device.
    Reporting,
    /// Free and reported.
    Reported,
    Hinted,
}

pub(crate) struct TestMemory {
    base: Pfn,
    pub(crate) frames: Vec<Frame>,
    /// The number of free frames that the balloon leaves to the kernel.
    pub(crate) min_free: usize,
    /// Why the next inflations fail.
    pub(crate) obstacles: VecDeque<Obstacle>,
    /// Whether the next inflation or deflation succeeds without a frame.
    pub(crate) gives_no_frame: bool,
    pub(crate) deflate_request: DeflateRequest,
    /// The maximal number of frames in a range.
    pub(crate) max_run: u64,
    /// The maximal number of ranges in a report.
    pub(crate) max_report_ranges: usize,
    /// The time before which nothing is reported.
    pub(crate) report_from: Duration,
    pub(crate) statistics: MemoryStatistics,
    /// For each answered report, how many of its first frames the device has initialised.
    pub(crate) initialised: Vec<u64>,
    /// The numbers of the frames in the balloon that the device says it has initialised.
    pub(crate) initialised_frames: BTreeSet<u64>,
    /// The ranges of the inflation that is with the device.
    inflating: Vec<PfnRange>,
    /// The ranges of the report that is with the device.
    reporting: Vec<PfnRange>,
    deflating: Vec<PfnRange>,
    outstanding_hint: Option<PfnRange>,
    /// Called when the memory is taken back from the device.
    pub(crate) on_device_reset: Box<dyn Fn()>,
}

impl TestMemory {
    /// Makes a memory of `frames` frames from `base` on. All are free.
    pub(crate) fn new(base: u64, frames: usize) -> TestMemory {
        TestMemory {
            base: Pfn::new(base).unwrap(),
            frames: vec![Frame::Free; frames],
            min_free: 0,
            obstacles: VecDeque::new(),
            gives_no_frame: false,
            deflate_request: DeflateRequest::default(),
            max_run: u64::MAX,
            max_report_ranges: Ranges::MAX_LEN,
            report_from: Duration::MAX,
            statistics: MemoryStatistics::default().with(Statistic::Free, 1),
            initialised: Vec::new(),
            initialised_frames: BTreeSet::new(),
            inflating: Vec::new(),
            reporting: Vec::new(),
            deflating: Vec::new(),
            outstanding_hint: None,
            on_device_reset: Box::new(|| {}),
        }
    }

    pub(crate) fn count(&self, state: Frame) -> usize {
        self.frames.iter().filter(|&&frame| frame == state).count()
    }

    /// Returns whether all frames of the range are in this state. Returns false if the range ends
    /// beyond the memory.
    pub(crate) fn all_are(&self, range: PfnRange, state: Frame) -> bool {
        self.indices(range).is_some_and(|i| self.frames[i].iter().all(|&frame| frame == state))
    }

    /// Changes the state of a frame, as the kernel does when it allocates or frees memory.
    pub(crate) fn change(&mut self, index: usize, to: Frame) {
        let len = self.frames.len();
        let frame = &mut self.frames[index % len];
        if matches!(frame, Frame::Used | Frame::Free | Frame::Reported) {
            *frame = to;
        }
    }

    fn indices(&self, range: PfnRange) -> Option<std::ops::Range<usize>> {
        let base = self.base.number();
        let start = range.start().number().checked_sub(base)? as usize;
        let end = range.end().number().checked_sub(base)? as usize;
        (end <= self.frames.len()).then_some(start..end)
    }

    fn change_frames(&mut self, range: PfnRange, from: &[Frame], to: Frame) {
        let indices = self.indices(range).expect("the range lies within the memory");
        for frame in &mut self.frames[indices] {
            assert!(from.contains(frame), "{range} is {frame:?}, to become {to:?}");
            *frame = to;
        }
    }

    /// Returns the first run of frames in this state, at most `max_frames` of them.
    fn find(&self, state: Frame, max_frames: u64) -> Option<PfnRange> {
        let first = self.frames.iter().position(|&frame| frame == state)?;
        let max_frames = max_frames.min(self.max_run) as usize;
        let run = self.frames[first..].iter().take(max_frames).take_while(|&&f| f == state).count();
        PfnRange::with_len(self.base.checked_add(first as u64)?, run as u64)
    }

    fn available(&self) -> usize {
        (self.count(Frame::Free) + self.count(Frame::Reported)).saturating_sub(self.min_free)
    }
}

impl Memory for TestMemory {
    fn inflate(&mut self, frames: &mut FrameList) -> Result<(), Obstacle> {
        assert!(frames.is_empty() && (1..=512).contains(&frames.room()));
        assert_eq!(self.inflating, [], "an inflation is in progress already");
        if std::mem::take(&mut self.gives_no_frame) {
            return Ok(());
        }
        if let Some(obstacle) = self.obstacles.pop_front() {
            return Err(obstacle);
        }
        while frames.room() > 0 {
            let max_frames = frames.room().min(self.available()) as u64;
            if max_frames == 0 {
                return Err(Obstacle::Later(Reason::Other("the kernel keeps the rest")));
            }
            let found = self
                .find(Frame::Free, max_frames)
                .or_else(|| self.find(Frame::Reported, max_frames));
            let range = found.expect("there is free memory");
            let below_limit = range.split_at(FrameList::FRAME_LIMIT).0;
            if below_limit.is_empty() {
                return Err(Obstacle::Never(Reason::Other("only memory above 16 TiB is left")));
            }
            self.change_frames(below_limit, &[Frame::Free, Frame::Reported], Frame::Balloon);
            frames.push(below_limit).unwrap();
            self.inflating = frames.ranges().collect();
        }
        Ok(())
    }

    fn inflated(&mut self, frames: &FrameList) {
        assert!(frames.ranges().eq(self.inflating.drain(..)));
        for range in frames.initialised() {
            assert!(frames.ranges().any(|inflated| inflated.covers(range)));
            let mut numbers = range.start().number()..range.end().number();
            assert!(numbers.all(|number| self.initialised_frames.insert(number)));
        }
    }

    fn deflate(&mut self, frames: &mut FrameList) {
        assert!(frames.is_empty() && (1..=512).contains(&frames.room()));
        assert_eq!(self.deflating, [], "a deflation is in progress already");
        if std::mem::take(&mut self.gives_no_frame) {
            return;
        }
        while frames.room() > 0
            && let Some(range) = self.find(Frame::Balloon, frames.room() as u64)
        {
            self.change_frames(range, &[Frame::Balloon], Frame::Deflating);
            frames.push(range).unwrap();
        }
        self.deflating = frames.ranges().collect();
        for range in self.deflating.clone() {
            self.change_frames(range, &[Frame::Deflating], Frame::Balloon);
        }
    }

    fn deflated(&mut self, frames: &FrameList) {
        assert!(frames.ranges().eq(self.deflating.drain(..)));
        for range in frames.ranges() {
            self.change_frames(range, &[Frame::Balloon], Frame::Free);
            self.initialised_frames.retain(|&number| !range.contains(Pfn::new(number).unwrap()));
        }
        let reduced = |number: u64| number.saturating_sub(frames.len() as u64);
        self.deflate_request.needed_frames = reduced(self.deflate_request.needed_frames);
        self.deflate_request.frames_to_replace = reduced(self.deflate_request.frames_to_replace);
    }

    fn deflate_request(&self) -> DeflateRequest {
        self.deflate_request
    }

    fn next_report(&mut self, now: Duration, max_ranges: usize) -> Progress<Ranges, Duration> {
        assert!(self.reporting.is_empty(), "a report is outstanding already");
        if self.count(Frame::Free) == 0 || self.report_from == Duration::MAX {
            return Progress::Idle;
        }
        if now < self.report_from {
            return Progress::Pending(self.report_from);
        }
        while self.reporting.len() < self.max_report_ranges.min(max_ranges) {
            let Some(range) = self.find(Frame::Free, 512) else { break };
            self.change_frames(range, &[Frame::Free], Frame::Reporting);
            self.reporting.push(range);
        }
        Progress::Ready(Ranges::new(&self.reporting).unwrap())
    }

    fn report_answered(&mut self, initialised: u64) {
        self.initialised.push(initialised);
        for range in std::mem::take(&mut self.reporting) {
            self.change_frames(range, &[Frame::Reporting], Frame::Reported);
        }
    }

    fn next_hint(&mut self) -> Option<PfnRange> {
        assert_eq!(self.outstanding_hint, None, "a hint is outstanding already");
        let range = self.find(Frame::Free, 512)?;
        self.change_frames(range, &[Frame::Free], Frame::Hinted);
        self.outstanding_hint = Some(range);
        Some(range)
    }

    fn hint_answered(&mut self) {
        assert!(self.outstanding_hint.take().is_some(), "no hint is outstanding");
    }

    fn release_hints(&mut self) {
        assert_eq!(self.outstanding_hint, None, "the device still has a hint");
        while let Some(range) = self.find(Frame::Hinted, u64::MAX) {
            self.change_frames(range, &[Frame::Hinted], Frame::Free);
        }
    }

    fn statistics(&mut self) -> MemoryStatistics {
        self.statistics
    }

    fn device_reset(&mut self) {
        (self.on_device_reset)();
        for frame in &mut self.frames {
            if matches!(frame, Frame::Balloon | Frame::Reporting | Frame::Hinted) {
                *frame = Frame::Free;
            }
        }
        self.initialised_frames.clear();
        self.inflating.clear();
        self.reporting.clear();
        self.deflating.clear();
        self.outstanding_hint = None;
    }
}
