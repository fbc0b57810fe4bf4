//! The engine behind the driver, and a host that really takes what it is given: memory that
//! belongs to somebody must never change.

mod given;
mod random;

use crate::device::Device;
use core::time::Duration;
use hotmem::report::{Contents, ReporterError, Settings};
use hotmem::{
    AllocRequest, Allocation, Bytes, Frames, Hotplug, Migration, OneCpu, Pfn, PfnRange, PinError,
};
use hotmem_testkit::Validated as _;
use hotmem_testkit::boot;
use hotmem_virtio::balloon::{
    Driver, EngineMemory, Features, Memory, Message, Poison, Queue, Status, Step,
};
use std::cell::Cell;
use std::sync::atomic::Ordering::Relaxed;

const SIZE: u64 = 256 << 20;
const BLOCK: u64 = 512;
const FLOOR: u64 = 4096;

/// 256 MiB of memory and its engine.
struct Machine {
    frames: Frames<OneCpu>,
    memory: hotmem_testkit::Memory,
}

impl Machine {
    fn new() -> Machine {
        Machine { frames: Frames::new(OneCpu), memory: hotmem_testkit::Memory::new(SIZE >> 12) }
    }

    fn boot(&self) -> Hotplug<'_, OneCpu> {
        boot(&self.frames, &self.memory, SIZE >> 12)
    }

    /// A word at the start of each frame.
    fn write(&self, range: PfnRange, word: impl Fn(u64) -> u64) {
        for pfn in range.start().number()..range.end().number() {
            self.memory.word(pfn).store(word(pfn), Relaxed);
        }
    }

    fn read(&self, pfn: u64) -> u64 {
        self.memory.word(pfn).load(Relaxed)
    }
}

struct World<'f> {
    machine: &'f Machine,
    device: Device,
    driver: Driver,
    memory: EngineMemory<'f, OneCpu, 64>,
    now: Duration,
    used: Option<Queue>,
    owned: Vec<(PfnRange, u64)>,
    stamp: u64,
    /// What the host leaves in memory that is reported.
    leaves: u64,
}

const FEATURES: Features = Features::all().difference(Features::PAGE_POISON);

impl<'f> World<'f> {
    fn new(machine: &'f Machine, features: Features, settings: Settings) -> World<'f> {
        let mut memory = EngineMemory::new(&machine.frames, FLOOR);
        memory.report(features, Poison::None, settings).unwrap();
        World::with(machine, features, memory)
    }

    fn with(
        machine: &'f Machine,
        features: Features,
        memory: EngineMemory<'f, OneCpu, 64>,
    ) -> World<'f> {
        let device = Device::new(0);
        let driver = Driver::new(features, &device.config);
        let (now, used, owned, stamp) = (Duration::ZERO, None, Vec::new(), 0);
        World { machine, device, driver, memory, now, used, owned, stamp, leaves: u64::MAX }
    }

    /// The host takes what it is given for as long as it has it.
    fn scribble(&self, message: &Message) {
        let take = |range: PfnRange, leaves| self.machine.write(range, |_| leaves);
        match message {
            Message::Inflate(range) | Message::Hint(range) => take(*range, u64::MAX),
            Message::Report(ranges) => {
                ranges.as_slice().iter().for_each(|&range| take(range, self.leaves));
            }
            _ => {}
        }
    }

    fn step(&mut self) -> Step {
        let config = self.device.config;
        let step = self.driver.step(self.now, &config, self.used.take(), &mut self.memory);
        match step {
            Step::Send(message) => {
                self.scribble(&message);
                self.device.send(message);
            }
            Step::SetActual(frames) => self.device.actual = frames,
            _ => {}
        }
        // It may still do so just before it answers.
        self.device.waiting.iter().for_each(|message| self.scribble(message));
        step
    }

    /// Runs for so long.
    fn run(&mut self, time: Duration) {
        let end = self.now + time;
        for _ in 0..200_000 {
            self.used = self.used.or_else(|| self.device.answer());
            let answered = self.used.is_some();
            match self.step() {
                Step::WaitUntil(until) if !answered && self.device.waiting.is_empty() => {
                    if until > end {
                        self.now = end;
                        return;
                    }
                    self.now = until;
                }
                Step::Idle if !answered && self.device.waiting.is_empty() => {
                    self.now = end;
                    return;
                }
                Step::Failed(failure) => panic!("{failure}"),
                _ => {}
            }
        }
        panic!("it spins: {:?}", self.driver);
    }

    /// Runs until the device has been silent on this queue for too long.
    fn run_until_silent(&mut self, queue: Queue) {
        for _ in 0..200_000 {
            self.used = self.used.or_else(|| self.device.answer());
            let answered = self.used.is_some();
            match self.step() {
                Step::WaitUntil(until) if !answered => self.now = until,
                Step::Silent(silent) => return assert_eq!(silent, queue),
                Step::Idle | Step::Failed(_) if !answered => break,
                _ => {}
            }
        }
        panic!("nobody says that the device is silent: {:?}", self.driver);
    }

    /// The device is reset, and the driver begins again.
    fn reset(&mut self) {
        let target = self.device.config.num_pages;
        self.memory.device_reset();
        self.device = Device::new(target);
        self.driver = Driver::new(FEATURES, &self.device.config);
        self.used = None;
    }

    fn allocate(&mut self, frames: u64) {
        let owned = self.machine.frames.alloc(AllocRequest::frames(frames).movable());
        let Ok(range) = owned.map(Allocation::into_raw) else { return };
        self.stamp += 1;
        let stamp = self.stamp << 32;
        self.machine.write(range, |pfn| stamp | pfn);
        self.owned.push((range, stamp));
    }

    fn free(&mut self, which: usize) {
        if self.owned.is_empty() {
            return;
        }
        let (range, stamp) = self.owned.swap_remove(which % self.owned.len());
        self.verify(range, stamp);
        // SAFETY: it was `owned`.
        unsafe { self.machine.frames.free_raw(range) }.unwrap();
    }

    fn verify(&self, range: PfnRange, stamp: u64) {
        for pfn in range.start().number()..range.end().number() {
            assert_eq!(self.machine.read(pfn), stamp | pfn, "frame {pfn:#x} is not its owner's");
        }
    }

    /// No owned frame has changed, and the engine's books are right.
    fn check(&self) {
        self.owned.iter().for_each(|&(range, stamp)| self.verify(range, stamp));
        self.machine.frames.validated().unwrap();
    }
}

/// As usual, but for what stays free while something is out: it waits for the next occasion.
fn patient() -> Settings {
    Settings { keep_free: Bytes::ZERO, ..Settings::default() }
}
