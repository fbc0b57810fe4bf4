//! Drives a balloon, and compares what the device, the driver and the memory manager believe, and what
//! the guest's memory holds.

use crate::balloon_memory::{Frame, TestMemory};
use crate::bridge::{Bridge, CONFIG};
use crate::random::Random;
use core::time::Duration;
use hotmem_conformance::Device as OtherDevice;
use hotmem_virtio::balloon::{
    BalloonOptions, Device, Driver, Features, MemoryStatistics, Poison, Progress, Statistic, Status,
};
use std::thread;

const BUDGET: u32 = 10_000;
/// The frames of the guest's RAM behind the queues that the kernel may give away.
const FRAMES: usize = 400;
const FIRST_FRAME: u64 = 16;
const OPTIONS: BalloonOptions = BalloonOptions {
    features: Features::all(),
    poison: Poison::None,
    answer_timeout: Driver::DEFAULT_ANSWER_TIMEOUT,
};
/// What the kernel writes to its memory.
const DATA: [u8; 8] = [0x5a; 8];

struct Case<D: OtherDevice> {
    bridge: Bridge<D>,
    /// The driver, unless it has ended.
    driver: Option<Device<Bridge<D>>>,
    memory: TestMemory,
    first_frame: u64,
    now: Duration,
}

impl<D: OtherDevice> Case<D> {
    fn new(device: D) -> Case<D> {
        let bridge = Bridge::new(device);
        let first_frame = bridge.machine().device.ram().start / 4096 + FIRST_FRAME;
        let memory = TestMemory::new(first_frame, FRAMES);
        let now = Duration::from_secs(1);
        let mut case = Case { bridge, driver: None, memory, first_frame, now };
        case.restart();
        case
    }

    /// Ends the driver at this moment, and starts another one.
    fn restart(&mut self) {
        self.driver = None;
        let queues = self.bridge.queues();
        self.driver = Some(Device::new(self.bridge.clone(), queues, OPTIONS).unwrap());
    }

    fn driver(&self) -> &Device<Bridge<D>> {
        self.driver.as_ref().expect("there is a driver")
    }

    fn poll(&mut self, budget: u32) -> Progress {
        let Case { driver, memory, now, .. } = self;
        driver.as_mut().expect("there is a driver").poll(*now, budget, memory)
    }

    fn request(&mut self, pages: u32) {
        self.bridge.machine().device.set_balloon_pages(pages).unwrap();
    }

    /// Polls until `is_done`.
    fn poll_until(&mut self, is_done: impl Fn(&mut Self) -> bool) {
        let limit = hotmem_time_limit::scaled(Duration::from_secs(20));
        let start = std::time::Instant::now();
        loop {
            let progress = self.poll(BUDGET);
            assert!(!matches!(progress, Progress::Ready(_)), "{progress:?}");
            if progress == Progress::Idle && is_done(self) {
                return;
            }
            assert!(start.elapsed() < limit, "{:?}", self.driver().driver());
            // A device on a thread of its own answers later.
            thread::sleep(Duration::from_micros(50));
            self.now += Duration::from_millis(1);
        }
    }

    fn settle(&mut self, pages: u32) {
        self.poll_until(|case| {
            let driver = case.driver().driver();
            driver.status() == Status::Settled && driver.target() == u64::from(pages)
        });
    }

    fn addr(&self, frame: usize) -> u64 {
        4096 * (self.first_frame + frame as u64)
    }

    /// Checks that the balloon has this size, that its memory is gone, and that other memory is not.
    fn check(&mut self, pages: u32) {
        assert_eq!(self.driver().driver().inflated_frames(), u64::from(pages));
        assert_eq!(self.memory.count(Frame::Balloon), pages as usize);
        assert_eq!(self.bridge.machine().register(CONFIG + 4), pages, "actual");
        // A device that says what it has initialised has initialised all of the balloon.
        let features = self.driver().driver().features();
        let has_bitmaps = features.contains(Features::DEVICE_INIT_ON_INFLATE);
        let initialised = if has_bitmaps { pages as usize } else { 0 };
        assert_eq!(self.memory.initialised_frames.len(), initialised);
        for frame in 0..FRAMES {
            let addr = self.addr(frame);
            let expected = match self.memory.frames[frame] {
                Frame::Balloon => [0; 8],
                _ => DATA,
            };
            assert_eq!(self.bridge.machine().read_memory(addr + 512), expected, "frame {frame}");
        }
    }

    /// Lets the kernel write to all memory that it has.
    fn use_memory(&mut self) {
        for frame in 0..FRAMES {
            if self.memory.frames[frame] != Frame::Balloon {
                let addr = self.addr(frame);
                self.bridge.machine().write_memory(addr + 512, &DATA).unwrap();
            }
        }
    }

    fn resize(&mut self, pages: u32) {
        self.use_memory();
        self.request(pages);
        self.settle(pages);
        // Frames that have left the balloon are the kernel's again.
        self.use_memory();
        self.check(pages);
    }
}

pub(crate) fn follows_each_size(device: impl OtherDevice) {
    let mut case = Case::new(device);
    for pages in [0, 1, 2, 255, 256, 257, FRAMES as u32, 300, 1, 0, 399, 0] {
        case.resize(pages);
    }
}

pub(crate) fn follows_random_requests(device: impl OtherDevice, requests: u32) {
    let mut case = Case::new(device);
    let mut random = Random::new();
    for _ in 0..requests {
        let pages = random.below(FRAMES as u64 + 1) as u32;
        match random.below(4) {
            // The request changes while the driver works.
            0 => {
                case.use_memory();
                case.request(pages);
                case.poll(random.below(6) as u32);
            }
            1 => {
                case.use_memory();
                case.request(pages);
                case.poll(random.below(6) as u32);
                case.restart();
                case.resize(pages);
            }
            _ => case.resize(pages),
        }
    }
}

/// Ends the driver after each number of steps of a resize, and starts another one.
pub(crate) fn survives_a_restart_after_each_step<D: OtherDevice>(new: impl Fn() -> D) {
    for (from, to) in [(0, 300), (300, 0), (100, 400)] {
        let mut case = Case::new(new());
        case.memory.report_from = Duration::ZERO;
        for steps in 0.. {
            case.memory.frames.fill(Frame::Free);
            case.restart();
            case.request(from);
            case.settle(from);
            case.request(to);
            let mut is_at_rest = false;
            for _ in 0..steps {
                is_at_rest = case.poll(1) == Progress::Idle;
            }
            case.restart();
            case.settle(to);
            assert_eq!(case.memory.count(Frame::Balloon), to as usize);
            let others = case.memory.count(Frame::Free) + case.memory.count(Frame::Reported);
            assert_eq!(others, FRAMES - to as usize);
            if is_at_rest {
                break;
            }
        }
    }
}

pub(crate) fn frees_reported_memory(device: impl OtherDevice) {
    let mut case = Case::new(device);
    case.use_memory();
    case.memory.report_from = Duration::ZERO;
    case.memory.max_run = 7;
    // The kernel keeps some memory.
    for frame in (0..FRAMES).step_by(10) {
        case.memory.change(frame, Frame::Used);
    }
    case.poll_until(|case| case.memory.count(Frame::Free) == 0);
    assert!(case.driver().driver().counters().reports > 1);
    for frame in 0..FRAMES {
        let expected = match case.memory.frames[frame] {
            Frame::Reported => [0; 8],
            _ => DATA,
        };
        let addr = case.addr(frame);
        assert_eq!(case.bridge.machine().read_memory(addr + 512), expected, "frame {frame}");
    }
}

pub(crate) fn gets_statistics(device: impl OtherDevice) {
    let mut case = Case::new(device);
    let tags = [(Statistic::Free, 4), (Statistic::OutOfMemoryKills, 10), (Statistic::Available, 6)];
    for round in 1..5u64 {
        case.memory.statistics =
            tags.into_iter().fold(MemoryStatistics::default(), |all, (statistic, tag)| {
                all.with(statistic, round * tag)
            });
        case.bridge.machine().device.ask_statistics().unwrap();
        let sent = case.driver().driver().counters().statistics;
        case.now += Duration::from_secs(1);
        case.poll_until(|case| case.driver().driver().counters().statistics > sent);
        for (_, tag) in tags {
            let value = case.bridge.machine().device.statistic(tag as u16).unwrap();
            assert_eq!(value, Some(round * tag), "tag {tag}");
        }
    }
}

pub(crate) fn gets_hints(device: impl OtherDevice) {
    let mut case = Case::new(device);
    case.use_memory();
    case.memory.change(3, Frame::Used);
    case.bridge.machine().device.start_hints().unwrap();
    case.poll_until(|case| case.memory.count(Frame::Free) == 0);
    assert_eq!(case.memory.count(Frame::Hinted), FRAMES - 1);
    assert_eq!(case.driver().driver().counters().hinted_frames, FRAMES as u64 - 1);
    let addr = case.addr(3);
    assert_eq!(case.bridge.machine().read_memory(addr + 512), DATA, "memory in use is kept");
}
