//! Reports free memory between other operations. The host accepts, refuses or loses batches.

use crate::machine::Machine;
use crate::model::{Block, FrameState, Model};
use hotmem::geometry::FRAME_SIZE;
use hotmem::report::{
    Batch, MAX_BATCH, Reporter, ReporterError, ReporterSettings, Statistics, Step, Unanswered,
};
use hotmem::{Bytes, Contents, MAX_PINS, PfnRange, RangeError, RangeErrorKind};
use hotmem_testkit::{Cpus, PAGEBLOCK, SECTION, numbers};
use std::time::Duration;

/// The number of pageblocks that may stay unreported although all their frames are free, because
/// they are CPUs' hints and so stay divided.
const HINTS: usize = 6;

/// The reporter, and the state that it must have.
pub(crate) struct Reporting<'f> {
    reporter: Option<Reporter<'f, Cpus>>,
    settings: ReporterSettings,
    now: Duration,
    is_on: bool,
    refusals: u32,
    /// Batches without an answer, and whether the host was reset after they were sent.
    batches: Vec<(Batch, bool)>,
    /// The pins of the machine, which outlive the reporter.
    pub(crate) pins: Vec<PfnRange>,
    /// The number of reporting pageblocks that count against the limit.
    reporting_blocks: u64,
    statistics: Statistics,
    /// The number of wakeups at the time when the reporter became idle.
    wakeups_when_idle: Option<u64>,
    /// Whether the last step has not finished counting free memory, so that the next step continues
    /// with an old count.
    is_counting: bool,
}

impl Reporting<'_> {
    pub(crate) fn new() -> Self {
        Reporting {
            reporter: None,
            settings: ReporterSettings::EAGER,
            now: Duration::ZERO,
            is_on: false,
            refusals: 0,
            batches: vec![],
            pins: vec![],
            reporting_blocks: 0,
            statistics: Statistics::default(),
            wakeups_when_idle: None,
            is_counting: false,
        }
    }
}

impl<'f> Machine<'f> {
    pub(crate) fn report(&mut self) {
        let reporting = &mut self.reporting;
        reporting.now += Duration::from_millis(self.model.rng.u64(..5));
        let Some(mut reporter) = reporting.reporter.take() else { return self.start_reporter() };
        let pinning = 4..4 + self.profile.pinnings;
        match self.model.rng.u8(..24) {
            // Drop the reporter. Its batches stay without an answer.
            0 => return,
            1 => self.change_settings(&mut reporter),
            2 => self.switch(&mut reporter),
            3 => self.reset_host(&mut reporter),
            choice if pinning.contains(&choice) => self.pin(),
            5..12 => self.answer_batch(&mut reporter),
            _ => self.step_reporter(&mut reporter),
        }
        self.model.count_new_metadata();
        self.check_reporter(&reporter);
        self.reporting.reporter = Some(reporter);
    }

    fn start_reporter(&mut self) {
        let frames = self.model.frames;
        let settings = self.model.random_settings();
        let start = || Reporter::new(frames, settings, Contents::Filled(0));
        self.reporting.reporter = Some(start().expect("the machine has no reporter"));
        assert_eq!(start().err(), Some(ReporterError::HasReporter));
        let Reporting { batches, now, reporter, pins, .. } =
            std::mem::replace(&mut self.reporting, Reporting::new());
        // Memory that the previous reporter has reported, without an answer, counts as well.
        let reporting_blocks =
            self.model.blocks.iter().filter(|block| block.reporting).count() as u64;
        self.reporting = Reporting {
            reporter,
            batches,
            now,
            settings,
            reporting_blocks,
            pins,
            is_on: true,
            ..Reporting::new()
        };
    }

    fn change_settings(&mut self, reporter: &mut Reporter<'f, Cpus>) {
        let settings = self.model.random_settings();
        reporter.settings = settings;
        self.reporting.settings = settings;
    }

    fn switch(&mut self, reporter: &mut Reporter<'f, Cpus>) {
        let reporting = &mut self.reporting;
        let on = self.model.rng.u8(..4) != 0;
        reporter.set_on(on);
        if on && !reporting.is_on {
            reporting.refusals = 0;
        }
        (reporting.is_on, reporting.wakeups_when_idle) = (on, None);
    }

    fn pin(&mut self) {
        let pins = &mut self.reporting.pins;
        if !pins.is_empty() && self.model.rng.bool() {
            let pin = pins.swap_remove(self.model.rng.usize(..pins.len()));
            assert!(self.hotplug.unpin(pin));
            return;
        }
        if pins.len() == self.profile.max_pins {
            return;
        }
        let requested = self.model.random_blocks(4);
        let model = &mut self.model;
        let mut pinned = Vec::new();
        let answer = self.hotplug.pin(requested, |frames| pinned.extend(numbers(frames)));
        model.trace(|| format!("pin {requested:?}: {answer:?}"));
        // Regions are visited in the order in which they were announced, not by address.
        pinned.sort_unstable();
        let blocks = || {
            requested.chunks(PAGEBLOCK).map(|part| (part, model.block_of(part.start().number())))
        };
        let blocking = || blocks().filter(|(_, block)| block.online && block.is_held());
        let is_blocked_by = |named, is_reporting| {
            blocking().any(|(part, block)| part == named && block.reporting == is_reporting)
        };
        match answer {
            Ok(()) if blocking().next().is_none() => {
                let online = blocks().filter(|(_, block)| block.online);
                let usable = online.flat_map(|(part, _)| numbers(part)).filter(|frame| {
                    let is_ram = model.frame_states[*frame as usize] != FrameState::Hole;
                    is_ram && !model.poisoned_frames.contains(frame)
                });
                assert!(usable.eq(pinned));
                model.blocks_in(requested).iter_mut().for_each(|block| block.is_reported = false);
                pins.push(requested);
            }
            Err(RangeError { range: named, kind: RangeErrorKind::Reporting })
                if is_blocked_by(named, true) =>
            {
                assert!(pinned.is_empty())
            }
            Err(RangeError { range: named, kind: RangeErrorKind::Isolated })
                if is_blocked_by(named, false) =>
            {
                assert!(pinned.is_empty())
            }
            Err(RangeError { range: named, kind: RangeErrorKind::TooMany(MAX_PINS) })
                if pins.len() >= MAX_PINS && named == requested =>
            {
                assert!(pinned.is_empty())
            }
            answer => panic!("{answer:?} for {requested:?}"),
        }
    }

    pub(crate) fn end_reporting(&mut self) {
        if self.reporting.reporter.is_none() {
            self.start_reporter();
        }
        if let Some(mut reporter) = self.reporting.reporter.take() {
            self.reset_host(&mut reporter);
        }
    }

    /// Resets the host: takes back all reporting memory, including that of lost batches, and makes
    /// batches without an answer void.
    fn reset_host(&mut self, reporter: &mut Reporter<'f, Cpus>) {
        let model = &mut self.model;
        let reporting: Vec<_> =
            (0..).zip(&model.blocks).filter(|(_, block)| block.reporting).collect();
        let reporting: Vec<u64> = reporting.into_iter().map(|(number, _)| number).collect();
        for &number in &reporting {
            model.assert_untouched(hotmem_testkit::range(number * PAGEBLOCK, PAGEBLOCK));
        }
        model.blocks.iter_mut().for_each(|block| block.reporting = false);
        self.reporting.batches.iter_mut().for_each(|(_, void)| *void = true);
        (self.reporting.reporting_blocks, self.reporting.refusals) = (0, 0);
        assert_eq!(reporter.reset(), reporting.len() as u64);
    }

    /// Lets the host accept a random batch, refuse it, or never answer it.
    fn answer_batch(&mut self, reporter: &mut Reporter<'f, Cpus>) {
        let now = self.reporting.now;
        let batches = &mut self.reporting.batches;
        if batches.is_empty() {
            return;
        }
        let (batch, is_void) = batches.swap_remove(self.model.rng.usize(..batches.len()));
        let answer = self.model.rng.u8(..20);
        self.model.trace(|| format!("the host answers {batch:?}: {answer}, void: {is_void}"));
        if answer == 0 {
            drop(batch);
            return;
        }
        let is_accepted = answer < 15;
        // The host promises zeroes for a part of the batches, or for every second pageblock.
        let is_promised_zero = |part: PfnRange| {
            answer < 8 || (answer < 12 && (part.start().number() / PAGEBLOCK).is_multiple_of(2))
        };
        let mut blocks = 0;
        for &range in batch.iter().filter(|_| !is_void) {
            self.model.assert_untouched(range);
            for part in range.chunks(PAGEBLOCK) {
                let is_whole = !self.model.has_poison(part);
                let block = &mut self.model.blocks_in(part)[0];
                assert!(block.reporting, "{part:?}");
                (block.reporting, block.is_reported) = (false, is_accepted && is_whole);
                blocks += 1;
                if is_accepted && is_promised_zero(part) {
                    self.model.zero(part);
                }
            }
        }
        let reporting = &mut self.reporting;
        reporting.reporting_blocks = reporting.reporting_blocks.saturating_sub(blocks);
        if is_accepted {
            reporter.reported_as(batch, |part| match is_promised_zero(part) {
                true => Contents::Filled(0),
                false => Contents::Undefined,
            });
            reporting.refusals = 0;
            reporting.statistics.reported += blocks;
        } else {
            reporter.failed(batch, now);
            reporting.refusals += 1;
            reporting.statistics.refused += 1;
            reporting.is_on &= reporting.refusals < reporting.settings.max_refusals;
        }
    }

    fn step_reporter(&mut self, reporter: &mut Reporter<'f, Cpus>) {
        self.model.sync_reported();
        let now = self.reporting.now;
        let step = reporter.step(now);
        self.model.trace(|| format!("report step at {now:?}: {step:?}"));
        self.model.count_new_metadata();
        let reporting = &mut self.reporting;
        assert_eq!(reporter.statistics().is_on, reporting.is_on);
        // A reporter that is off starts no work. It may still ask for a reset of a silent host.
        assert!(reporting.is_on || !matches!(step, Step::Ready(Ok(_)) | Step::Working), "{step:?}");
        let wakeups_before = reporting.wakeups_when_idle.take();
        let is_counted_now =
            !std::mem::replace(&mut reporting.is_counting, matches!(step, Step::Working));
        match step {
            Step::Ready(Ok(batch)) => self.send(batch, is_counted_now),
            Step::Pending(at) => assert!(at > now),
            Step::Ready(Err(Unanswered)) => {
                assert!(reporting.reporting_blocks > 0);
                self.reset_host(reporter);
            }
            Step::Idle if !reporting.is_on => {}
            Step::Idle => {
                let wakeups = Cpus::wakeups();
                // The engine woke the reporter at most once since it became idle.
                assert!(wakeups_before.is_none_or(|before| wakeups - before <= 1));
                self.reporting.wakeups_when_idle = Some(wakeups);
                self.check_all_is_reported();
            }
            Step::Working => {}
        }
    }

    /// Checks that all memory of a batch was free, and marks it: only the host may access it until
    /// it answers.
    fn send(&mut self, batch: Batch, is_counted_now: bool) {
        let settings = self.reporting.settings;
        let model = &mut self.model;
        let longest = (settings.max_range_size.0 / FRAME_SIZE).clamp(PAGEBLOCK, SECTION);
        assert!((1..=settings.max_batch_ranges.clamp(1, MAX_BATCH)).contains(&batch.len()));
        let before = self.reporting.reporting_blocks;
        for &range in &batch {
            assert!(!range.is_empty() && range.is_aligned(PAGEBLOCK) && range.frames() <= longest);
            assert_eq!(range.chunks(SECTION).count(), 1);
            let is_reportable =
                |block: &Block| block.online && !block.is_held() && !block.is_reported;
            assert!(
                model.all_blocks_are(range, is_reportable),
                "{range:?} {:?}",
                model.blocks_in(range)
            );
            assert!(
                numbers(range).all(|frame| model.frame_states[frame as usize] == FrameState::Free)
            );
            assert!(self.reporting.pins.iter().all(|pin| !pin.overlaps(range)), "{range:?}");
            model.blocks_in(range).iter_mut().for_each(|block| block.reporting = true);
            // From now on the host owns the memory.
            model.mark_forbidden(range);
            self.reporting.reporting_blocks += range.frames() / PAGEBLOCK;
        }
        assert!(
            before < reporting_limit(&settings)
                && self.reporting.reporting_blocks <= reporting_limit(&settings)
        );
        let keep_free = settings.keep_free.0.div_ceil(PAGEBLOCK * FRAME_SIZE) as usize;
        for &range in &batch {
            let node = model.node_of(range.start().number());
            let remaining = model.wholly_free().filter(|&at| model.node_of(at) == node).count();
            assert!(
                remaining >= keep_free || !is_counted_now,
                "{node:?} {remaining} {keep_free} {batch:?}"
            );
        }
        self.reporting.statistics.batches += 1;
        self.reporting.batches.push((batch, false));
    }

    /// Checks that the reporter is idle only when it has reported all memory that its settings
    /// allow.
    fn check_all_is_reported(&self) {
        let Reporting { settings, pins, .. } = &self.reporting;
        let allows_all = settings.keep_free == Bytes::ZERO
            && settings.min_unreported.0 <= PAGEBLOCK * FRAME_SIZE
            && settings.reporting_divisor <= 1;
        let model = &self.model;
        let is_pinned = |frame: u64| pins.iter().any(|pin| numbers(*pin).contains(&frame));
        let remaining =
            model.wholly_free().filter(|&at| !model.block_of(at).is_reported && !is_pinned(at));
        assert!(
            !allows_all || remaining.clone().count() <= HINTS,
            "{:x?}",
            remaining.collect::<Vec<_>>()
        );
    }

    fn check_reporter(&mut self, reporter: &Reporter<'f, Cpus>) {
        self.reporting.statistics.is_on = self.reporting.is_on;
        // The count may exceed the model's: the engine may have allocated and freed reported memory
        // within one operation, which the model does not see.
        let refaulted = reporter.statistics().refaulted;
        assert!(refaulted >= self.reporting.statistics.refaulted, "{refaulted} refaulted");
        self.reporting.statistics.refaulted = refaulted;
        assert_eq!(reporter.statistics(), self.reporting.statistics);
    }
}

impl Model<'_> {
    /// Returns the first frame of each pageblock whose frames are all free.
    fn wholly_free(&self) -> impl Iterator<Item = u64> + Clone {
        let starts = (0..self.frame_states.len() as u64).step_by(PAGEBLOCK as usize);
        starts.filter(|&start| {
            let block = self.block_of(start);
            let mut frames = start..start + PAGEBLOCK;
            block.online
                && !block.is_held()
                && frames.all(|frame| self.frame_states[frame as usize] == FrameState::Free)
        })
    }

    fn random_settings(&mut self) -> ReporterSettings {
        let rng = &mut self.rng;
        let random_size = |rng: &mut fastrand::Rng| match rng.bool() {
            true => Bytes::ZERO,
            false => Bytes(rng.u64(..8) * PAGEBLOCK * FRAME_SIZE),
        };
        let random_delay = |rng: &mut fastrand::Rng| Duration::from_millis(rng.u64(..8) / 4 * 5);
        ReporterSettings {
            max_batch_ranges: rng.usize(..6),
            max_range_size: Bytes(rng.u64(..2 * SECTION * FRAME_SIZE)),
            max_reporting: Bytes(rng.u64(..4 * SECTION * FRAME_SIZE)),
            reporting_divisor: [0, 1, 3, 8][rng.usize(..4)],
            answer_timeout: Duration::from_millis(rng.u64(1..200)),
            min_unreported: random_size(rng),
            wake_delay: random_delay(rng),
            min_free_time: random_delay(rng),
            keep_free: random_size(rng),
            retry_pause: random_delay(rng),
            max_refusals: rng.u32(1..5),
            ..ReporterSettings::default()
        }
    }
}

/// Returns the number of pageblocks that may be reporting at the same time.
fn reporting_limit(settings: &ReporterSettings) -> u64 {
    (settings.max_reporting.0 / (PAGEBLOCK * FRAME_SIZE)).max(1)
}
