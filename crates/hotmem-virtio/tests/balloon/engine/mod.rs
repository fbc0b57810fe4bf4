//! Tests the driver with the engine and a host that overwrites the memory that it is given. Allocated
//! memory must never change.

mod fragmentation;
mod host_memory;
mod initialised;
mod random;

use crate::device::{DONE, Device};
use core::time::Duration;
use hotmem::report::{ReporterError, ReporterSettings};
use hotmem::{
    AllocRequest, Allocation, Bytes, Contents, Frames, Hotplug, Migration, OneCpu, Pfn, PfnRange,
};
use hotmem_testkit::Validated as _;
use hotmem_testkit::{boot, plug, range};
use hotmem_virtio::balloon::{
    Action, Answer, Driver, EngineMemory, Features, FrameNumbers, InflateBitmap, Memory, Message,
    Poison, Queue, Ranges, Status, Step,
};
use std::collections::BTreeSet;
use std::sync::atomic::Ordering::Relaxed;

const SIZE: u64 = 256 << 20;
const PAGEBLOCK_FRAMES: u64 = 512;
const MIN_FREE_FRAMES: u64 = 4096;

/// A machine of 256 MiB.
struct Machine {
    frames: Frames<OneCpu>,
    memory: hotmem_testkit::Memory,
}

impl Machine {
    fn new() -> Machine {
        let frames = Frames::new(OneCpu);
        hotmem_testkit::keep_zero_marks(&frames);
        Machine { frames, memory: hotmem_testkit::Memory::new(SIZE >> 12) }
    }

    fn boot(&self) -> Hotplug<'_, OneCpu> {
        boot(&self.frames, &self.memory, SIZE >> 12)
    }

    /// Writes a word at the start of each frame.
    fn write(&self, range: PfnRange, word: impl Fn(u64) -> u64) {
        for pfn in range.start().number()..range.end().number() {
            self.memory.word(pfn).store(word(pfn), Relaxed);
        }
    }

    fn read(&self, pfn: u64) -> u64 {
        self.memory.word(pfn).load(Relaxed)
    }
}

struct Guest<'f> {
    machine: &'f Machine,
    device: Device,
    driver: Driver,
    memory: EngineMemory<'f, OneCpu>,
    now: Duration,
    answered_queue: Option<Queue>,
    /// The kernel's allocations. Each frame contains its number and the tag of its allocation.
    tagged_allocations: Vec<(PfnRange, u64)>,
    last_tag: u64,
    /// The value that the host writes to reported memory.
    host_value: u64,
    /// The report that the device has not answered yet.
    outstanding_report: Option<Ranges>,
    /// The number of bytes that the host initialises of the next reports, at most.
    initialised_bytes: u32,
    /// The inflate request that the device has not answered yet.
    outstanding_inflation: Option<FrameNumbers>,
    /// The bits that the host sets in each byte of the bitmaps of the next inflate requests.
    initialised_bits: u8,
    /// The number of bytes of these bitmaps that the host writes, at most.
    bitmap_bytes: u32,
    /// The frames in the balloon that the host says it has initialised.
    promised_frames: BTreeSet<u32>,
    /// The number of frames that the engine has said to be zero when they were allocated.
    zeroed_frames: u64,
    /// Memory that a device of the guest may access, so that the host must not have it.
    pins: Vec<PfnRange>,
}

/// All features except page poison. Without page poison, the host may change the contents of reported
/// memory.
const FEATURES: Features = Features::all().difference(Features::PAGE_POISON);

impl<'f> Guest<'f> {
    fn new(machine: &'f Machine, features: Features, settings: ReporterSettings) -> Guest<'f> {
        let mut memory = EngineMemory::new(&machine.frames, MIN_FREE_FRAMES);
        memory.report(features, Poison::None, settings).unwrap();
        Guest::with(machine, features, memory)
    }

    fn with(
        machine: &'f Machine,
        features: Features,
        memory: EngineMemory<'f, OneCpu>,
    ) -> Guest<'f> {
        let device = Device::new(0);
        let driver = Driver::new(features, &device.config);
        Guest {
            machine,
            device,
            driver,
            memory,
            now: Duration::ZERO,
            answered_queue: None,
            tagged_allocations: Vec::new(),
            last_tag: 0,
            host_value: u64::MAX,
            outstanding_report: None,
            initialised_bytes: 0,
            outstanding_inflation: None,
            initialised_bits: 0,
            bitmap_bytes: u32::MAX,
            promised_frames: BTreeSet::new(),
            zeroed_frames: 0,
            pins: Vec::new(),
        }
    }

    /// Overwrites the memory of a request, as the host may while it has the memory.
    fn overwrite(&self, message: &Message) {
        let overwrite = |range: PfnRange, word| {
            assert!(
                self.pins.iter().all(|pin| !pin.overlaps(range)),
                "the host gets pinned memory"
            );
            self.machine.write(range, |_| word);
        };
        match message {
            Message::Inflate(frames) => {
                frames.ranges().for_each(|range| overwrite(range, u64::MAX));
            }
            // The host keeps its promises.
            Message::Deflate(frames) => {
                let numbers = frames.as_slice().iter();
                let others = numbers.filter(|number| !self.promised_frames.contains(number));
                others.for_each(|&number| overwrite(range(number.into(), 1), u64::MAX));
            }
            Message::Hint(range) => overwrite(*range, u64::MAX),
            Message::Report(ranges) => {
                ranges.as_slice().iter().for_each(|&range| overwrite(range, self.host_value));
            }
            _ => {}
        }
    }

    fn unpin_all(&mut self, hotplug: &mut Hotplug<'_, OneCpu>) {
        self.pins.drain(..).for_each(|pin| assert!(hotplug.unpin(pin)));
    }

    /// Pins memory for a device of the guest, unless the host has a part of it.
    fn pin(&mut self, hotplug: &mut Hotplug<'_, OneCpu>, range: PfnRange) {
        if hotplug.pin(range, |_| {}).is_ok() {
            let balloon = &self.device.balloon;
            let is_pinned = |&number: &u32| range.contains(Pfn::new(number.into()).unwrap());
            assert!(!balloon.iter().any(is_pinned), "memory in the balloon is pinned");
            self.pins.push(range);
        }
    }

    fn step(&mut self) -> Step {
        let config = self.device.config;
        let answer = self.answered_queue.take().map(|queue| self.answer(queue));
        let step = self.driver.step(self.now, &config, answer, &mut self.memory);
        match step {
            Step::Ready(Ok(Action::Send(message))) => {
                self.overwrite(&message);
                match message {
                    Message::Report(ranges) => self.outstanding_report = Some(ranges),
                    Message::Inflate(frames) => self.outstanding_inflation = Some(frames),
                    _ => {}
                }
                self.device.send(message);
            }
            Step::Ready(Ok(Action::SetActual(frames))) => self.device.actual_pages = frames,
            _ => {}
        }
        // The host may write until it answers.
        self.device.unanswered.iter().for_each(|message| self.overwrite(message));
        step
    }

    /// Returns the device's answer on a queue. If it ends a report or an inflate request, the host
    /// initialises a part of the memory before, and says so. All other bytes keep what the host has
    /// written.
    fn answer(&mut self, queue: Queue) -> Answer {
        if queue == Queue::Inflate
            && self.driver.features().contains(Features::DEVICE_INIT_ON_INFLATE)
            && let Some(frames) = self.outstanding_inflation.take()
        {
            return self.answer_inflation(&frames);
        }
        let report = if queue == Queue::Reports { self.outstanding_report.take() } else { None };
        let mut written = 0;
        for range in report.iter().flat_map(Ranges::as_slice) {
            let left = (self.initialised_bytes - written).min(range.frames() as u32 * 4096);
            let whole = PfnRange::with_len(range.start(), u64::from(left / 4096)).unwrap();
            self.machine.write(whole, |_| 0);
            written += left;
        }
        Answer { written, ..Answer::from(queue) }
    }

    fn answer_inflation(&mut self, frames: &FrameNumbers) -> Answer {
        let written = self.bitmap_bytes.min(frames.bitmap_bytes() as u32);
        let bits = (0..8 * written).map(|bit| self.initialised_bits >> (bit % 8) & 1 != 0);
        for (&number, _) in frames.as_slice().iter().zip(bits).filter(|&(_, bit)| bit) {
            self.machine.write(range(number.into(), 1), |_| 0);
            self.promised_frames.insert(number);
        }
        let bitmap = InflateBitmap::new([self.initialised_bits; InflateBitmap::MAX_BYTES]);
        Answer { queue: Queue::Inflate, written, bitmap }
    }

    /// Steps the driver and answers its requests, until `time` has passed or the driver is idle.
    fn run(&mut self, time: Duration) {
        let end = self.now + time;
        for _ in 0..200_000 {
            self.answered_queue = self.answered_queue.or_else(|| self.device.answer());
            let answered = self.answered_queue.is_some();
            match self.step() {
                Step::Pending(until) if !answered && self.device.unanswered.is_empty() => {
                    if until > end {
                        self.now = end;
                        return;
                    }
                    self.now = until;
                }
                Step::Idle if !answered && self.device.unanswered.is_empty() => {
                    self.now = end;
                    return;
                }
                Step::Ready(Err(failure)) => panic!("{failure}"),
                _ => {}
            }
        }
        panic!("the driver does not wait: {:?}", self.driver);
    }

    /// Runs until the driver requests a reset because of this queue.
    fn run_until_reset(&mut self, queue: Queue) {
        for _ in 0..200_000 {
            self.answered_queue = self.answered_queue.or_else(|| self.device.answer());
            let answered = self.answered_queue.is_some();
            match self.step() {
                Step::Pending(until) if !answered => self.now = until,
                Step::Ready(Ok(Action::Reset(reset))) => return assert_eq!(reset, queue),
                Step::Idle | Step::Ready(Err(_)) if !answered => break,
                _ => {}
            }
        }
        panic!("the driver does not request a reset: {:?}", self.driver);
    }

    /// Resets the device and starts a new driver.
    fn reset(&mut self) {
        let target = self.device.config.num_pages;
        self.memory.device_reset();
        self.device = Device::new(target);
        (self.outstanding_report, self.outstanding_inflation) = (None, None);
        self.promised_frames.clear();
        self.driver = Driver::new(FEATURES, &self.device.config);
        self.answered_queue = None;
    }

    fn allocate(&mut self, frames: u64) {
        let request = AllocRequest::frames(frames).movable();
        let Ok((allocation, contents)) = self.machine.frames.alloc_with_contents(request) else {
            return;
        };
        let range = Allocation::into_raw(allocation);
        if contents == Contents::Filled(0) {
            self.zeroed_frames += range.frames();
            let mut words =
                (range.start().number()..range.end().number()).map(|pfn| self.machine.read(pfn));
            assert!(words.all(|word| word == 0), "{range} is not zero");
        }
        self.last_tag += 1;
        let tag = self.last_tag << 32;
        self.machine.write(range, |pfn| tag | pfn);
        self.tagged_allocations.push((range, tag));
    }

    fn free(&mut self, index: usize) {
        if self.tagged_allocations.is_empty() {
            return;
        }
        let (range, tag) =
            self.tagged_allocations.swap_remove(index % self.tagged_allocations.len());
        self.verify(range, tag);
        // SAFETY: the range was removed from `tagged_allocations`, so no code uses it any more.
        unsafe { self.machine.frames.free_raw(range) }.unwrap();
    }

    fn verify(&self, range: PfnRange, tag: u64) {
        for pfn in range.start().number()..range.end().number() {
            assert_eq!(self.machine.read(pfn), tag | pfn, "frame {pfn:#x} has been overwritten");
        }
    }

    /// Checks that no allocated frame has changed, and that the engine is consistent.
    fn check(&self) {
        self.tagged_allocations.iter().for_each(|&(range, tag)| self.verify(range, tag));
        self.machine.frames.validated().unwrap();
    }
}

/// Returns the default settings, but no free memory stays unreported (`keep_free`). Unlike with
/// `ReporterSettings::EAGER`, memory is reported only after it has been free for a while.
fn settings_that_keep_none_free() -> ReporterSettings {
    ReporterSettings { keep_free: Bytes::ZERO, ..ReporterSettings::default() }
}
