//! Ends and restarts the driver after every step of every exchange, with a device that has done its
//! work, or has not, and that answers late, twice or never, or resets itself. Afterwards the device,
//! the driver and the memory manager must agree, and no memory may be lost.

use super::transport::{self, Host, MockTransport};
use super::{ALL_FEATURES, FRAMES, NOW};
use crate::device::DONE;
use crate::memory::{Frame, TestMemory};
use core::time::Duration;
use hotmem::report::Settings;
use hotmem::{AllocRequest, Bytes, Frames, OneCpu};
use hotmem_testkit::{SECTION, Validated as _};
use hotmem_virtio::balloon::{
    Device, Driver, EngineMemory, Features, Memory, Poison, Progress, QueueNumbering, Status,
};
use virtio_drivers::transport::DeviceStatus;

type BalloonDevice = Device<MockTransport>;

/// What happens in the driver's steps.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Exchange {
    /// Memory is reported, and the balloon is inflated.
    Give,
    /// The balloon is inflated, and memory is hinted.
    Hint,
    /// The balloon is deflated, and hinted memory comes back.
    TakeBack,
}

/// What the device has done with the requests that are outstanding after the last step.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Work {
    /// It has not looked at them.
    None,
    /// It has carried them out and not answered.
    Done,
    Answered,
    AnsweredTwice,
}

/// What happens next.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Ending {
    /// The device answers late.
    Late,
    /// The device does not answer before the driver's patience ends.
    Silence,
    ResetsItself,
    NeedsReset,
    /// The kernel drops the device, and starts it anew.
    Drop,
    /// The kernel restarts the device.
    Restart,
    /// The kernel stops the device, and starts it anew.
    Stop,
    /// The kernel stops the device, which at first does not complete its reset.
    StopSlowly,
}

/// The size of the balloon in frames.
const TARGET: u32 = 700;

/// The kernel's side: the memory manager, and what it knows.
trait Kernel {
    type Memory: Memory;

    fn memory(&mut self) -> &mut Self::Memory;

    /// Ends reports, so that there is memory to hint.
    fn stop_reports(&mut self);

    /// Checks that the memory manager has taken back everything.
    fn check_all_is_back(&mut self);

    /// Checks that exactly the frames of the device's balloon are out of use.
    fn check_balloon(&mut self, host: &Host);
}

struct Mock(TestMemory);

impl Kernel for Mock {
    type Memory = TestMemory;

    fn memory(&mut self) -> &mut TestMemory {
        &mut self.0
    }

    fn stop_reports(&mut self) {
        self.0.report_from = Duration::MAX;
    }

    fn check_all_is_back(&mut self) {
        assert_eq!(self.0.count(Frame::Free) + self.0.count(Frame::Reported), FRAMES);
    }

    fn check_balloon(&mut self, host: &Host) {
        let host = host.borrow();
        let balloon = &host.device.balloon;
        let is_out_of_use =
            |&number: &u32| self.0.frames[number as usize - 0x1000] == Frame::Balloon;
        assert!(balloon.iter().all(is_out_of_use));
        assert_eq!(self.0.count(Frame::Balloon), balloon.len());
        assert_eq!(self.0.count(Frame::Hinted) + self.0.count(Frame::Reporting), 0);
    }
}

struct Engine<'f> {
    frames: &'f Frames<OneCpu>,
    memory: EngineMemory<'f, OneCpu>,
    free_at_start: u64,
}

impl<'f> Kernel for Engine<'f> {
    type Memory = EngineMemory<'f, OneCpu>;

    fn memory(&mut self) -> &mut EngineMemory<'f, OneCpu> {
        &mut self.memory
    }

    fn stop_reports(&mut self) {
        self.memory.reporter().unwrap().set_on(false);
    }

    fn check_all_is_back(&mut self) {
        let counts = self.frames.counts();
        assert_eq!((self.memory.inflated_frames(), self.memory.hinted_frames()), (0, 0));
        // The engine may have taken frames for bitmaps.
        assert!(self.free_at_start - counts.free <= 2, "frames are lost: {counts:?}");
        assert_eq!(counts.reporting, 0);
    }

    fn check_balloon(&mut self, host: &Host) {
        let host = host.borrow();
        assert_eq!(self.memory.inflated_frames(), host.device.balloon.len() as u64);
        assert_eq!(self.memory.hinted_frames(), 0);
        for &number in host.device.balloon.iter().step_by(57) {
            let at = hotmem_testkit::pfn(number.into());
            let second_owner = self.frames.alloc(AllocRequest::frames(1).at(at));
            assert!(second_owner.is_err(), "frame {number:#x} of the balloon is free");
        }
    }
}

fn new_device(host: &Host) -> BalloonDevice {
    Device::new(host.transport(), host.page().dma(0), ALL_FEATURES).unwrap()
}

/// Polls until the driver neither works nor waits.
fn poll_to_end<M: Memory>(
    now: &mut Duration,
    device: &mut BalloonDevice,
    memory: &mut M,
) -> Progress {
    for _ in 0..1000 {
        match device.poll(*now, super::BUDGET, memory) {
            // The engine looks for memory to report now and then.
            Progress::Pending(until) if until < *now + Duration::from_secs(60) => *now = until,
            progress => return progress,
        }
    }
    panic!("the driver does not come to rest: {:?}", device.driver());
}

/// Runs one case. Returns whether the driver had a step left to make.
fn run<K: Kernel>(
    host: &Host,
    kernel: &mut K,
    exchange: Exchange,
    steps: u32,
    work: Work,
    ending: Ending,
) -> bool {
    let mut device = new_device(host);
    let mut now = NOW;
    host.borrow_mut().device.config.num_pages = TARGET;
    match exchange {
        Exchange::Give => {}
        Exchange::Hint | Exchange::TakeBack => {
            kernel.stop_reports();
            host.borrow_mut().device.request_hints(5);
        }
    }
    if exchange == Exchange::TakeBack {
        poll_to_end(&mut now, &mut device, kernel.memory());
        host.borrow_mut().device.config.num_pages = 0;
        host.borrow_mut().device.request_hints(DONE);
    }
    // The device answers all but the last step.
    host.borrow_mut().ignores_queues = true;
    let mut has_more = true;
    for step in 0..steps {
        if step > 0 {
            host.serve();
        }
        has_more = !matches!(device.poll(now, 1, kernel.memory()), Progress::Idle);
    }
    match work {
        Work::None => {}
        Work::Done => host.borrow_mut().carry_out(),
        Work::Answered => host.serve(),
        Work::AnsweredTwice => host.borrow_mut().serve_twice(),
    }
    match ending {
        Ending::Late => {}
        Ending::Silence => {
            now += Driver::DEFAULT_ANSWER_TIMEOUT / 20;
            for _ in 0..40 {
                device.poll(now, super::BUDGET, kernel.memory());
                now += Driver::DEFAULT_ANSWER_TIMEOUT / 20;
            }
        }
        Ending::ResetsItself => host.borrow_mut().reset(),
        Ending::NeedsReset => host.borrow_mut().status |= DeviceStatus::DEVICE_NEEDS_RESET,
        Ending::Drop => {
            drop(device);
            device = new_device(host);
        }
        Ending::Restart => assert_eq!(device.restart(kernel.memory()), Ok(())),
        Ending::Stop | Ending::StopSlowly => {
            host.borrow_mut().stuck_in_reset = ending == Ending::StopSlowly;
            let stopped = device.stop(kernel.memory());
            host.borrow_mut().stuck_in_reset = false;
            match stopped {
                Ok(()) => assert_eq!(ending, Ending::Stop),
                Err(device) => assert!(device.stop(kernel.memory()).is_ok()),
            }
            kernel.check_all_is_back();
            device = new_device(host);
        }
    }
    host.borrow_mut().ignores_queues = false;
    if !matches!(ending, Ending::ResetsItself | Ending::NeedsReset) {
        host.borrow_mut().answer_late();
    }
    host.borrow_mut().device.request_hints(DONE);
    if let Progress::Ready(failure) = poll_to_end(&mut now, &mut device, kernel.memory()) {
        // Only a device that answered twice is not to be trusted.
        assert_eq!(work, Work::AnsweredTwice, "{failure}");
        assert!(!failure.device_holds_no_memory());
        assert_eq!(device.restart(kernel.memory()), Ok(()));
        kernel.check_all_is_back();
    }
    let target = host.borrow().device.config.num_pages;
    for target in [target, TARGET, 0] {
        host.borrow_mut().device.config.num_pages = target;
        let progress = poll_to_end(&mut now, &mut device, kernel.memory());
        assert!(!matches!(progress, Progress::Ready(_)), "{progress:?}");
        assert_eq!(device.driver().status(), Status::Settled);
        assert_eq!(device.driver().inflated_frames(), u64::from(target));
        assert_eq!(host.borrow().device.balloon.len(), target as usize);
        kernel.check_balloon(host);
    }
    assert!(device.stop(kernel.memory()).is_ok());
    kernel.check_all_is_back();
    has_more
}

/// Runs all cases, each with a new host; of the numbers of steps, one in `interval`.
fn run_all(interval: usize, mut run_case: impl FnMut(&Host, Exchange, u32, Work, Ending) -> bool) {
    let works = [Work::None, Work::Done, Work::Answered, Work::AnsweredTwice];
    let endings = [
        Ending::Late,
        Ending::Silence,
        Ending::ResetsItself,
        Ending::NeedsReset,
        Ending::Drop,
        Ending::Restart,
        Ending::Stop,
        Ending::StopSlowly,
    ];
    for exchange in [Exchange::Give, Exchange::Hint, Exchange::TakeBack] {
        for steps in (0..).step_by(interval) {
            let mut has_more = false;
            for (work, ending) in
                works.into_iter().flat_map(|work| endings.map(|ending| (work, ending)))
            {
                // The driver reads the status very often before it gives up, so try this less often.
                if ending == Ending::StopSlowly && (steps != 3 || work != Work::None) {
                    continue;
                }
                let host = transport::host(Features::all(), QueueNumbering::Dense);
                let case = format!("{exchange:?}, {steps} steps, {work:?}, {ending:?}");
                let _case = PrintedOnPanic(case);
                has_more |= run_case(&host, exchange, steps, work, ending);
            }
            if !has_more {
                assert!(steps > 4, "{exchange:?} has only {steps} steps");
                break;
            }
            assert!(steps < 300, "the driver does not come to rest");
        }
    }
}

/// Prints a text if it is dropped by a panic.
struct PrintedOnPanic(String);

impl Drop for PrintedOnPanic {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("in the case: {}", self.0);
        }
    }
}

#[test]
fn nothing_is_lost_by_a_restart_after_any_step() {
    run_all(1, |host, exchange, steps, work, ending| {
        let mut memory = TestMemory::new(0x1000, FRAMES);
        memory.report_from = Duration::ZERO;
        (memory.max_run, memory.max_report_ranges) = (300, 3);
        let device_side = host.clone();
        memory.on_device_reset = Box::new(move || {
            assert!(!device_side.borrow().has_buffers(), "the device may still write to memory");
            assert!(device_side.borrow().device.balloon.is_empty());
        });
        run(host, &mut Mock(memory), exchange, steps, work, ending)
    });
}

#[test]
fn the_engine_loses_nothing_by_a_restart_after_any_step() {
    let interval = if std::env::var_os("HOTMEM_DEEP").is_some() { 1 } else { 5 };
    run_all(interval, |host, exchange, steps, work, ending| {
        let ram = hotmem_testkit::Memory::new(SECTION);
        let frames = Frames::new(OneCpu);
        let _hotplug = hotmem_testkit::boot(&frames, &ram, SECTION);
        let free_at_start = frames.counts().free;
        let mut memory = EngineMemory::new(&frames, 1024);
        let settings = Settings { keep_free: Bytes::ZERO, ..Settings::EAGER };
        memory.report(Features::PAGE_REPORTING, Poison::None, settings).unwrap();
        let mut kernel = Engine { frames: &frames, memory, free_at_start };
        let has_more = run(host, &mut kernel, exchange, steps, work, ending);
        frames.validated().unwrap();
        has_more
    });
}
