//! Makes requests with mixed lifetimes while free memory is reported to the host, and checks which
//! of the allocated frames are zero.
//!
//! The sizes and the lifetimes are those of `hotmem bench fragmentation`, or all requests are for
//! single frames, so that most of them come from divided pageblocks. The memory that may be in use
//! swings between 10 and 60 % of all memory, so that pageblocks become free, stay free for long
//! enough to be reported, and are used again. Time is simulated: all requests together take 10
//! minutes.

use super::oracle::{Counts, Oracle};
use super::touch::address_of;
use super::{Subject, goals};
use crate::bench::fragmentation::{
    machine,
    pageblocks::Pageblocks,
    requests::{Request, Requests},
};
use crate::bench::random::{ORDERS, Random};
use crate::bench::record::Sample;
use crate::hosted::{Hosted, ThreadCpus};
use anyhow::{Context, Result, ensure};
use hotmem::geometry::FRAME_SIZE;
use hotmem::report::{Reporter, ReporterSettings, Statistics, Step};
use hotmem::{AllocRequest, Bytes, Contents, Pfn, PfnRange};
use std::{cmp::Reverse, collections::BinaryHeap, time::Duration};

/// The bounds of the memory that may be in use, in percent of all memory.
const LEAST_IN_USE_PERCENT: u64 = 10;
const MOST_IN_USE_PERCENT: u64 = 60;
/// The time that all requests take.
const ALL_REQUESTS: Duration = Duration::from_secs(600);
/// How often the amount changes that may be in use.
const SWINGS: u64 = 20;
/// How often the figures are taken that are means over time.
const SAMPLES: u64 = 100;
/// The words of a frame.
const WORDS: u64 = FRAME_SIZE / 8;

/// What is measured.
#[derive(Clone, Copy, Debug)]
pub(super) struct Load {
    pub(super) sizes: Sizes,
    pub(super) size: Bytes,
    /// The number of CPUs that make the requests.
    pub(super) cpus: u16,
    pub(super) requests: u64,
    pub(super) seed: u64,
}

/// The sizes of the requests.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Sizes {
    /// Those of [`ORDERS`].
    Mixed,
    /// Single frames.
    Frames,
}

impl Sizes {
    pub(super) const ALL: [Sizes; 2] = [Sizes::Mixed, Sizes::Frames];

    pub(super) fn name(self) -> &'static str {
        match self {
            Sizes::Mixed => "mixed",
            Sizes::Frames => "frames",
        }
    }

    /// Returns the requests of a load that keeps about `used_frames` frames in use.
    fn requests(self, load: Load, used_frames: u64) -> impl FnMut() -> Request {
        // The lifetimes are those of requests of mixed sizes, so of as many requests in use.
        let frames_per_100 = ORDERS.iter().map(|&(order, share)| share << order).sum::<u64>();
        let of_mixed = match self {
            Sizes::Mixed => used_frames,
            Sizes::Frames => used_frames * frames_per_100 / 100,
        };
        let mut requests = Requests::new(load.seed, load.cpus, of_mixed);
        move || match self {
            Sizes::Mixed => requests.next(),
            Sizes::Frames => Request { order: 0, ..requests.next() },
        }
    }
}

/// The results of one run. The first tenth of the requests counts only for `refused` and the host.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) struct Results {
    pub(super) has_marks: bool,
    pub(super) counts: Counts,
    /// The numbers of requests for a frame and for a pageblock, and how many of each were answered
    /// as zero.
    pub(super) requests: [(u64, u64); 2],
    pub(super) refused: u64,
    /// The mean number of free pageblocks.
    pub(super) whole_pageblocks: f64,
    /// The mean number of frames that are free, zero and backed.
    pub(super) backed_zero: f64,
    /// The reporter's count of pageblocks that were reported and allocated again.
    pub(super) refaulted: u64,
    /// The share of an eighth of the memory, allocated in single frames at the end, that was zero.
    pub(super) zero_at_end: f64,
}

/// Memory in use.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Used {
    /// The number of the request before which the memory may be freed. The field is first, so that
    /// values are compared by it.
    free_at_request: u64,
    start: Pfn,
    frames: u64,
    freed_by: usize,
}

/// A machine under the load.
struct Machine<'m> {
    hosted: &'m Hosted,
    reporter: Reporter<'m, ThreadCpus>,
    now: Duration,
    oracle: Oracle,
    pageblocks: Pageblocks,
    in_use: BinaryHeap<Reverse<Used>>,
    used_frames: u64,
    /// Chooses the words that are written.
    random: Random,
}

/// Runs the load. Fails if a frame that was answered as zero is not zero.
pub(super) fn measure(subject: Subject, load: Load) -> Result<Results> {
    let hosted = machine(load.size)?;
    let memory = hosted.hotplug_range();
    if subject == Subject::Hotmem {
        hosted.keep_zero_marks();
    }
    let settings = ReporterSettings::default();
    let mut machine = Machine {
        hosted: &hosted,
        reporter: Reporter::new(hosted.frames(), settings, Contents::Undefined)?,
        now: Duration::ZERO,
        oracle: Oracle::new(memory),
        pageblocks: Pageblocks::new(memory.start().number(), memory.frames()),
        in_use: BinaryHeap::new(),
        used_frames: 0,
        random: Random::with_seed(load.seed),
    };
    machine.write_all(memory)?;
    let mut results = machine.play(load, memory.frames())?;
    results.zero_at_end = machine.zero_share_after_settling(memory.frames() / 8)?;
    results.counts = machine.oracle.counts();
    let Statistics { refaulted, .. } = machine.reporter.statistics();
    ensure!(results.counts.wrong == 0, "{} dirty frames are marked as zero", results.counts.wrong);
    Ok(Results { has_marks: subject == Subject::Hotmem, refaulted, ..results })
}

impl Machine<'_> {
    /// Makes all requests.
    fn play(&mut self, load: Load, frames: u64) -> Result<Results> {
        let [least, most] =
            [LEAST_IN_USE_PERCENT, MOST_IN_USE_PERCENT].map(|percent| frames * percent / 100);
        let mut next_request = load.sizes.requests(load, most);
        let mut swings = Random::with_seed(!load.seed);
        let mut limit = most;
        let (mut made, mut refused, mut samples) = ([(0, 0); 2], 0, Vec::new());
        for number in 0..load.requests {
            if number.is_multiple_of((load.requests / SWINGS).max(1)) {
                limit = least + swings.below(most - least);
            }
            let is_counted = number >= load.requests / 10;
            let request = next_request();
            self.free_until(limit.saturating_sub(1 << request.order))?;
            match self.allocate(number, request)? {
                None => refused += 1,
                Some(is_zero) if is_counted && matches!(request.order, 0 | 9) => {
                    let (made, zero) = &mut made[usize::from(request.order == 9)];
                    (*made, *zero) = (*made + 1, *zero + u64::from(is_zero));
                }
                Some(_) => {}
            }
            self.now = ALL_REQUESTS.mul_f64(number as f64 / load.requests as f64);
            if number.is_multiple_of(64) {
                self.report_some()?;
            }
            if is_counted && number.is_multiple_of((load.requests / SAMPLES).max(1)) {
                let backed_zero = self.oracle.counts().backed_zero;
                samples.push((self.pageblocks.whole_blocks() as f64, backed_zero as f64));
            }
        }
        let mean = |of: fn(&(f64, f64)) -> f64| {
            samples.iter().map(of).sum::<f64>() / samples.len().max(1) as f64
        };
        Ok(Results {
            has_marks: false,
            counts: Counts::default(),
            requests: made,
            refused,
            whole_pageblocks: mean(|sample| sample.0),
            backed_zero: mean(|sample| sample.1),
            refaulted: 0,
            zero_at_end: 0.0,
        })
    }

    /// Writes to all memory, so that none of it is zero.
    fn write_all(&mut self, memory: PfnRange) -> Result<()> {
        for number in 0..memory.frames() {
            let request = Request { order: 0, cpu: 0, freed_by: 0, lifetime: 0 };
            self.allocate(number, request)?.context("no memory is free")?;
        }
        self.free_until(0)
    }

    /// Frees memory, in the order in which lifetimes end, until at most `frames` frames are in use.
    fn free_until(&mut self, frames: u64) -> Result<()> {
        while self.used_frames > frames
            && let Some(Reverse(Used { start, frames, freed_by, .. })) = self.in_use.pop()
        {
            ThreadCpus::run_as(freed_by);
            let range = PfnRange::with_len(start, frames).context("a range was too long")?;
            // SAFETY: `allocate` has allocated the range, and it is freed once.
            unsafe { self.hosted.frames().free_raw(range)? };
            self.pageblocks.free(start.number(), frames);
            self.used_frames -= frames;
        }
        Ok(())
    }

    /// Allocates memory for a request, checks it, and writes to each of its frames. Returns whether
    /// it was answered as zero, or `None` if the request was refused.
    fn allocate(&mut self, number: u64, request: Request) -> Result<Option<bool>> {
        let Request { order, cpu, freed_by, lifetime } = request;
        ThreadCpus::run_as(cpu);
        let request = AllocRequest::order(order).movable();
        let Ok((allocation, contents)) = self.hosted.frames().alloc_with_contents(request) else {
            return Ok(None);
        };
        let range = allocation.into_raw();
        let is_zero = contents == Contents::Filled(0);
        self.oracle.allocated(range, is_zero);
        for frame in range.chunks(1) {
            let words: *mut u64 = address_of(self.hosted, frame)?.cast();
            let words = std::ptr::slice_from_raw_parts_mut(words, usize::try_from(WORDS)?);
            // SAFETY: the frame was allocated, so nobody else accesses it.
            let words = unsafe { &mut *words };
            ensure!(!is_zero || words.iter().all(|&word| word == 0), "{frame} is not zero");
            words[self.random.index_below(words.len())] = u64::MAX;
        }
        self.pageblocks.take(range.start().number(), range.frames());
        self.used_frames += range.frames();
        self.in_use.push(Reverse(Used {
            free_at_request: number + lifetime,
            start: range.start(),
            frames: range.frames(),
            freed_by,
        }));
        Ok(Some(is_zero))
    }

    /// Lets the reporter do some steps. Returns whether it has more to do now.
    fn report_some(&mut self) -> Result<bool> {
        for _ in 0..16 {
            match self.reporter.step(self.now) {
                Step::Ready(Ok(batch)) => {
                    self.hosted.discard(&batch).context("giving memory back to the host")?;
                    batch.iter().for_each(|&range| self.oracle.zeroed(range));
                    self.reporter.reported_as(batch, |_| Contents::Filled(0));
                }
                Step::Working => {}
                Step::Pending(_) | Step::Idle | Step::Ready(Err(_)) => return Ok(false),
            }
        }
        Ok(true)
    }

    /// Reports what may be reported, allocates `frames` single frames, and returns the share of
    /// them that is zero, in percent.
    fn zero_share_after_settling(&mut self, frames: u64) -> Result<f64> {
        for _ in 0..100 {
            self.now += ReporterSettings::default().min_free_time;
            while self.report_some()? {}
        }
        let mut zero = 0_u64;
        for _ in 0..frames {
            let request = Request { order: 0, cpu: 0, freed_by: 0, lifetime: u64::MAX / 2 };
            zero += u64::from(self.allocate(0, request)?.context("no memory is free")?);
        }
        Ok(zero as f64 * 100.0 / frames as f64)
    }
}

impl Results {
    /// Adds the figures of one run to the sample.
    pub(super) fn record(&self, case: &str, subject: &str, sample: &mut Sample) {
        let percent = |part: u64, all: u64| part as f64 * 100.0 / all.max(1) as f64;
        let Counts { zero, answered, with_dirty, backed, .. } = self.counts;
        let mut add = |metric, value| sample.add(case, subject, metric, value);
        add(goals::BACKED_AGAIN, backed as f64);
        add(goals::WHOLE_PAGEBLOCKS, self.whole_pageblocks);
        add(("refused", "count"), self.refused as f64);
        if self.has_marks {
            let lost = zero - answered - with_dirty;
            let [frames, pageblocks] = self.requests;
            add(goals::ANSWERED, percent(answered, zero));
            add(("lost", "%"), percent(lost, zero));
            add(("in_dirty_runs", "%"), percent(with_dirty, zero));
            add(("frames_zero", "%"), percent(frames.1, frames.0));
            add(("pageblocks_zero", "%"), percent(pageblocks.1, pageblocks.0));
            add(("zero_at_end", "%"), self.zero_at_end);
            add(("backed_zero", "count"), self.backed_zero);
        }
    }
}
