//! Reports free memory between all other operations. The host accepts, refuses or loses batches.

use crate::world::{Block, Frame, Machine, World};
use hotmem::geometry::FRAME_SIZE;
use hotmem::report::{
    Batch, Contents, MAX_BATCH, Reporter, ReporterError, Settings, Statistics, Step, Unanswered,
};
use hotmem::{Bytes, PfnRange, RangeError, RangeErrorKind};
use hotmem_testkit::{BLOCK, Cpus, SECTION, numbers};
use std::time::Duration;

/// The number of wholly free pageblocks that may stay unreported, because they stay divided as
/// CPUs' hints.
const HINTS: usize = 6;

/// The reporter, and the state that it must have.
pub(crate) struct Reporting<'f> {
    reporter: Option<Reporter<'f, Cpus>>,
    settings: Settings,
    now: Duration,
    on: bool,
    refusals: u32,
    /// Batches without an answer, and whether the host was reset after they were sent.
    batches: Vec<(Batch, bool)>,
    /// The pins of the machine, which outlive the reporter.
    pub(crate) pins: Vec<PfnRange>,
    /// Pageblocks that count against the limit of pageblocks that are out.
    out: u64,
    done: Statistics,
    /// The number of wakeups when it fell asleep.
    asleep_since: Option<u64>,
    /// Whether the last step has not finished counting, so that the next one continues with an old
    /// count.
    counts_on: bool,
}

impl Reporting<'_> {
    pub(crate) fn new() -> Self {
        Reporting {
            reporter: None,
            settings: Settings::EAGER,
            now: Duration::ZERO,
            on: false,
            refusals: 0,
            batches: vec![],
            pins: vec![],
            out: 0,
            done: Statistics::default(),
            asleep_since: None,
            counts_on: false,
        }
    }
}

impl<'f> Machine<'f> {
    pub(crate) fn report(&mut self) {
        let reporting = &mut self.reporting;
        reporting.now += Duration::from_millis(self.world.rng.u64(..5));
        let Some(mut reporter) = reporting.reporter.take() else { return self.start_reporter() };
        match self.world.rng.u8(..24) {
            // Memory that is out stays out.
            0 => return,
            1 => self.change_settings(&mut reporter),
            2 => self.switch(&mut reporter),
            3 => self.pin(),
            4 => self.reset_host(&mut reporter),
            5..12 => self.batch_comes_back(&mut reporter),
            _ => self.step_reporter(&mut reporter),
        }
        self.world.sync_metadata();
        self.check_reporter(&reporter);
        self.reporting.reporter = Some(reporter);
    }

    fn start_reporter(&mut self) {
        let frames = self.world.frames;
        let settings = self.world.some_settings();
        let start = || Reporter::new(frames, settings, Contents::Filled(0));
        self.reporting.reporter = Some(start().expect("there is none"));
        assert_eq!(start().err(), Some(ReporterError::AlreadyThere));
        let Reporting { batches, now, reporter, pins, .. } =
            std::mem::replace(&mut self.reporting, Reporting::new());
        // Memory that the previous reporter left out counts as well.
        let out = self.world.blocks.iter().filter(|block| block.out).count() as u64;
        self.reporting =
            Reporting { reporter, batches, now, settings, out, pins, on: true, ..Reporting::new() };
    }

    fn change_settings(&mut self, reporter: &mut Reporter<'f, Cpus>) {
        let settings = self.world.some_settings();
        reporter.settings = settings;
        self.reporting.settings = settings;
    }

    fn switch(&mut self, reporter: &mut Reporter<'f, Cpus>) {
        let reporting = &mut self.reporting;
        let on = self.world.rng.u8(..4) != 0;
        reporter.set_on(on);
        if on && !reporting.on {
            reporting.refusals = 0;
        }
        (reporting.on, reporting.asleep_since) = (on, None);
    }

    fn pin(&mut self) {
        let pins = &mut self.reporting.pins;
        if !pins.is_empty() && self.world.rng.bool() {
            let pin = pins.swap_remove(self.world.rng.usize(..pins.len()));
            assert!(self.hotplug.unpin(pin));
            return;
        }
        if pins.len() == 4 {
            return;
        }
        let wanted = self.world.some_blocks(4);
        let world = &mut self.world;
        let mut touched = Vec::new();
        let answer = self.hotplug.pin(wanted, |frames| touched.extend(numbers(frames)));
        world.tell(|| format!("pin {wanted:?}: {answer:?}"));
        // Regions are visited in the order in which they were announced, not by address.
        touched.sort_unstable();
        let blocks =
            || wanted.chunks(BLOCK).map(|part| (part, world.block_of(part.start().number())));
        let in_the_way = || blocks().filter(|(_, block)| block.online && block.is_held());
        let names = |named, out| in_the_way().any(|(at, block)| at == named && block.out == out);
        match answer {
            Ok(()) if in_the_way().next().is_none() => {
                let online = blocks().filter(|(_, block)| block.online);
                assert!(online.flat_map(|(part, _)| numbers(part)).eq(touched));
                world.blocks_in(wanted).iter_mut().for_each(|block| block.reported = false);
                pins.push(wanted);
            }
            Err(RangeError { range: named, kind: RangeErrorKind::Reporting })
                if names(named, true) =>
            {
                assert!(touched.is_empty())
            }
            Err(RangeError { range: named, kind: RangeErrorKind::Isolated })
                if names(named, false) =>
            {
                assert!(touched.is_empty())
            }
            answer => panic!("{answer:?} for {wanted:?}"),
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

    /// Resets the host: all memory is taken back, including lost batches, and batches without an
    /// answer become void.
    fn reset_host(&mut self, reporter: &mut Reporter<'f, Cpus>) {
        let world = &mut self.world;
        let out: Vec<_> = (0..).zip(&world.blocks).filter(|(_, block)| block.out).collect();
        let out: Vec<u64> = out.into_iter().map(|(number, _)| number).collect();
        for &number in &out {
            world.assert_untouched(hotmem_testkit::range(number * BLOCK, BLOCK));
        }
        world.blocks.iter_mut().for_each(|block| block.out = false);
        self.reporting.batches.iter_mut().for_each(|(_, void)| *void = true);
        (self.reporting.out, self.reporting.refusals) = (0, 0);
        assert_eq!(reporter.reset(), out.len() as u64);
    }

    /// The host accepts a batch, refuses it, or never answers.
    fn batch_comes_back(&mut self, reporter: &mut Reporter<'f, Cpus>) {
        let now = self.reporting.now;
        let batches = &mut self.reporting.batches;
        if batches.is_empty() {
            return;
        }
        let (batch, is_void) = batches.swap_remove(self.world.rng.usize(..batches.len()));
        let answer = self.world.rng.u8(..20);
        self.world.tell(|| format!("{batch:?} comes back: {answer}, void: {is_void}"));
        if answer == 0 {
            drop(batch);
            return;
        }
        let taken = answer < 15;
        let mut blocks = 0;
        for &range in batch.ranges().iter().filter(|_| !is_void) {
            self.world.assert_untouched(range);
            for part in range.chunks(BLOCK) {
                let is_whole = !self.world.has_poison(part);
                let block = &mut self.world.blocks_in(part)[0];
                assert!(block.out, "{part:?}");
                (block.out, block.reported) = (false, taken && is_whole);
                blocks += 1;
            }
        }
        let reporting = &mut self.reporting;
        reporting.out = reporting.out.saturating_sub(blocks);
        if taken {
            reporter.reported(batch).unwrap();
            reporting.refusals = 0;
            reporting.done.reported += blocks;
        } else {
            reporter.failed(batch, now).unwrap();
            reporting.refusals += 1;
            reporting.done.refused += 1;
            reporting.on &= reporting.refusals < reporting.settings.tries;
        }
    }

    fn step_reporter(&mut self, reporter: &mut Reporter<'f, Cpus>) {
        self.world.sync_reported();
        let now = self.reporting.now;
        let step = reporter.step(now);
        self.world.tell(|| format!("report step at {now:?}: {step:?}"));
        self.world.sync_metadata();
        let reporting = &mut self.reporting;
        assert_eq!(reporter.is_on(), reporting.on);
        // A silent host must be reset even if the reporter is off.
        assert!(reporting.on || !matches!(step, Step::Ready(Ok(_)) | Step::Working), "{step:?}");
        let slept_since = reporting.asleep_since.take();
        let is_counted_now =
            !std::mem::replace(&mut reporting.counts_on, matches!(step, Step::Working));
        match step {
            Step::Ready(Ok(batch)) => self.send(batch, is_counted_now),
            Step::Pending(at) => assert!(at > now),
            Step::Ready(Err(Unanswered)) => {
                assert!(reporting.out > 0);
                self.reset_host(reporter);
            }
            Step::Idle if !reporting.on => {}
            Step::Idle => {
                let rings = Cpus::rings();
                // It slept all the time, or it was woken once.
                assert!(slept_since.is_none_or(|since| rings - since <= 1));
                self.reporting.asleep_since = Some(rings);
                self.check_nothing_is_left();
            }
            Step::Working => {}
        }
    }

    /// Checks that all of a batch was free, and marks it as not accessible until it is back.
    fn send(&mut self, batch: Batch, is_counted_now: bool) {
        let settings = self.reporting.settings;
        let world = &mut self.world;
        let longest = (settings.longest.0 / FRAME_SIZE).clamp(BLOCK, SECTION);
        assert!((1..=settings.batch.clamp(1, MAX_BATCH)).contains(&batch.ranges().len()));
        let before = self.reporting.out;
        for &range in batch.ranges() {
            assert!(!range.is_empty() && range.is_aligned(BLOCK) && range.frames() <= longest);
            assert_eq!(range.sections().count(), 1);
            let free = |block: &Block| block.online && !block.is_held() && !block.reported;
            assert!(world.all(range, free), "{range:?} {:?}", world.blocks_in(range));
            assert!(numbers(range).all(|frame| world.frame[frame as usize] == Frame::Free));
            assert!(self.reporting.pins.iter().all(|pin| !pin.overlaps(range)), "{range:?}");
            world.blocks_in(range).iter_mut().for_each(|block| block.out = true);
            // The host has the memory from now on.
            world.forbid(range);
            self.reporting.out += range.frames() / BLOCK;
        }
        assert!(before < most_out(&settings) && self.reporting.out <= most_out(&settings));
        let kept = settings.keep_free.0.div_ceil(BLOCK * FRAME_SIZE) as usize;
        for &range in batch.ranges() {
            let node = world.node_of(range.start().number());
            let left = world.wholly_free().filter(|&at| world.node_of(at) == node).count();
            assert!(left >= kept || !is_counted_now, "{node:?} {left} {kept} {batch:?}");
        }
        self.reporting.done.batches += 1;
        self.reporting.batches.push((batch, false));
    }

    /// Checks that a sleeping reporter has left only memory that it must keep back.
    fn check_nothing_is_left(&self) {
        let Reporting { settings, pins, .. } = &self.reporting;
        let all = settings.keep_free == Bytes::ZERO
            && settings.threshold.0 <= BLOCK * FRAME_SIZE
            && settings.share <= 1;
        let world = &self.world;
        let is_pinned = |frame: u64| pins.iter().any(|pin| numbers(*pin).contains(&frame));
        let left = world.wholly_free().filter(|&at| !world.block_of(at).reported && !is_pinned(at));
        assert!(!all || left.clone().count() <= HINTS, "{:x?}", left.collect::<Vec<_>>());
    }

    fn check_reporter(&mut self, reporter: &Reporter<'f, Cpus>) {
        assert_eq!(reporter.is_on(), self.reporting.on);
        // The model does not see memory that was allocated only for a moment, perhaps by the
        // engine.
        let refaulted = reporter.statistics().refaulted;
        assert!(refaulted >= self.reporting.done.refaulted, "{refaulted} refaulted");
        self.reporting.done.refaulted = refaulted;
        assert_eq!(reporter.statistics(), self.reporting.done);
    }
}

impl World<'_> {
    /// Returns the first frames of all wholly free pageblocks.
    fn wholly_free(&self) -> impl Iterator<Item = u64> + Clone {
        let starts = (0..self.frame.len() as u64).step_by(BLOCK as usize);
        starts.filter(|&start| {
            let block = self.block_of(start);
            let mut frames = start..start + BLOCK;
            block.online
                && !block.is_held()
                && frames.all(|frame| self.frame[frame as usize] == Frame::Free)
        })
    }

    fn some_settings(&mut self) -> Settings {
        let rng = &mut self.rng;
        let few = |rng: &mut fastrand::Rng| match rng.bool() {
            true => Bytes::ZERO,
            false => Bytes(rng.u64(..8) * BLOCK * FRAME_SIZE),
        };
        let soon = |rng: &mut fastrand::Rng| Duration::from_millis(rng.u64(..8) / 4 * 5);
        Settings {
            batch: rng.usize(..6),
            longest: Bytes(rng.u64(..2 * SECTION * FRAME_SIZE)),
            most_out: Bytes(rng.u64(..4 * SECTION * FRAME_SIZE)),
            share: [0, 1, 3, 8][rng.usize(..4)],
            patience: Duration::from_millis(rng.u64(1..200)),
            threshold: few(rng),
            delay: soon(rng),
            dwell: soon(rng),
            keep_free: few(rng),
            retry: soon(rng),
            tries: rng.u32(1..5),
            ..Settings::default()
        }
    }
}

/// Returns the number of pageblocks that may be out.
fn most_out(settings: &Settings) -> u64 {
    (settings.most_out.0 / (BLOCK * FRAME_SIZE)).max(1)
}
