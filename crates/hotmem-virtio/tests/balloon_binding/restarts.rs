//! Ends and restarts the driver after every step of every exchange, with a device that has done its
//! work, or has not, and that answers late, twice or never, or resets itself. Afterwards the device,
//! the driver and the memory manager must agree, and no memory may be lost.

use super::transport::{self, Host, MockTransport};
use super::{ALL_FEATURES, FRAMES, NOW};
use crate::device::DONE;
use crate::memory::{Frame, TestMemory};
use core::time::Duration;
use hotmem::report::ReporterSettings;
use hotmem::{AllocRequest, Bytes, Frames, OneCpu};
use hotmem_testkit::{Cut, Ending, Exchange, SECTION, Validated as _, Work};
use hotmem_virtio::balloon::{
    Device, Driver, EngineMemory, Failure, Features, Memory, Poison, Progress, QueueNumbering,
    Status,
};

type BalloonDevice = Device<MockTransport>;

/// What happens in the driver's steps.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Service {
    /// Memory is reported, and the balloon is inflated.
    Give,
    /// The balloon is inflated, and memory is hinted.
    Hint,
    /// The balloon is deflated, and hinted memory comes back.
    TakeBack,
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

/// An exchange during which the driver ends.
struct Cutting<'a, K> {
    host: &'a Host,
    kernel: &'a mut K,
    /// The device, unless it is stopped.
    device: Option<BalloonDevice>,
    now: Duration,
}

impl<'a, K: Kernel> Cutting<'a, K> {
    fn begin(host: &'a Host, kernel: &'a mut K, service: Service) -> Cutting<'a, K> {
        let mut cutting = Cutting { host, kernel, device: Some(new_device(host)), now: NOW };
        host.borrow_mut().device.config.num_pages = TARGET;
        match service {
            Service::Give => {}
            Service::Hint | Service::TakeBack => {
                cutting.kernel.stop_reports();
                host.borrow_mut().device.request_hints(5);
            }
        }
        if service == Service::TakeBack {
            cutting.poll_to_end();
            host.borrow_mut().device.config.num_pages = 0;
            host.borrow_mut().device.request_hints(DONE);
        }
        // The device answers all but the last step.
        host.borrow_mut().ignores_queues = true;
        cutting
    }

    fn poll(&mut self, budget: u32) -> Progress {
        let device = self.device.as_mut().expect("the device is not stopped");
        device.poll(self.now, budget, self.kernel.memory())
    }

    /// Polls until the driver neither works nor waits.
    fn poll_to_end(&mut self) -> Progress {
        for _ in 0..1000 {
            match self.poll(super::BUDGET) {
                // The engine looks for memory to report now and then.
                Progress::Pending(until) if until < self.now + Duration::from_secs(60) => {
                    self.now = until;
                }
                progress => return progress,
            }
        }
        panic!("the driver does not come to rest: {:?}", self.driver());
    }

    fn driver(&self) -> &Driver {
        self.device.as_ref().expect("the device is not stopped").driver()
    }

    fn restart(&mut self) -> Result<(), Failure> {
        let device = self.device.as_mut().expect("the device is not stopped");
        device.restart(self.kernel.memory())
    }

    /// Stops the device. Keeps it if its reset does not complete.
    fn stop(&mut self) {
        let device = self.device.take().expect("the device is not stopped");
        self.device = device.stop(self.kernel.memory()).err();
    }
}

impl<K: Kernel> Exchange for Cutting<'_, K> {
    fn answer(&mut self) {
        self.host.serve();
    }

    fn step(&mut self) -> bool {
        !matches!(self.poll(1), Progress::Idle)
    }

    fn work(&mut self, work: Work) {
        self.host.borrow_mut().work(work);
    }

    fn end(&mut self, Cut { ending, .. }: Cut) {
        match ending {
            Ending::Late => {}
            Ending::Silence => {
                self.now += Driver::DEFAULT_ANSWER_TIMEOUT / 20;
                for _ in 0..40 {
                    self.poll(super::BUDGET);
                    self.now += Driver::DEFAULT_ANSWER_TIMEOUT / 20;
                }
            }
            Ending::ResetsItself | Ending::NeedsReset => self.host.borrow_mut().end(ending),
            Ending::Drop => {
                self.device = None;
                self.device = Some(new_device(self.host));
            }
            Ending::Restart => assert_eq!(self.restart(), Ok(())),
            Ending::FailedRestart => {
                self.host.borrow_mut().refuses_features = true;
                assert!(self.restart().is_err());
                self.kernel.check_all_is_back();
                let progress = self.poll(super::BUDGET);
                assert!(matches!(progress, Progress::Ready(_)), "{progress:?}");
                assert!(!self.host.borrow().has_buffers());
                self.host.borrow_mut().refuses_features = false;
                assert_eq!(self.restart(), Ok(()));
            }
            Ending::Stop | Ending::StuckInReset | Ending::Withdraw => {
                self.host.borrow_mut().stuck_in_reset = ending == Ending::StuckInReset;
                self.stop();
                assert_eq!(self.device.is_some(), ending == Ending::StuckInReset);
                self.host.borrow_mut().stuck_in_reset = false;
                if self.device.is_some() {
                    self.stop();
                }
                self.kernel.check_all_is_back();
                self.device = Some(new_device(self.host));
            }
        }
    }

    fn finish(&mut self, Cut { work, ending, .. }: Cut) {
        self.host.borrow_mut().ignores_queues = false;
        if !matches!(ending, Ending::ResetsItself | Ending::NeedsReset) {
            self.host.borrow_mut().answer_late();
        }
        self.host.borrow_mut().device.request_hints(DONE);
        if let Progress::Ready(failure) = self.poll_to_end() {
            // Only a device that answered twice is not to be trusted.
            assert_eq!(work, Work::AnsweredTwice, "{failure}");
            assert!(!failure.device_holds_no_memory());
            assert_eq!(self.restart(), Ok(()));
            self.kernel.check_all_is_back();
        }
        let target = self.host.borrow().device.config.num_pages;
        for target in [target, TARGET, 0] {
            self.host.borrow_mut().device.config.num_pages = target;
            let progress = self.poll_to_end();
            assert!(!matches!(progress, Progress::Ready(_)), "{progress:?}");
            assert_eq!(self.driver().status(), Status::Settled);
            assert_eq!(self.driver().inflated_frames(), u64::from(target));
            assert_eq!(self.host.borrow().device.balloon.len(), target as usize);
            self.kernel.check_balloon(self.host);
        }
        self.stop();
        assert!(self.device.is_none());
        self.kernel.check_all_is_back();
    }
}

/// The kinds of work. The device answers with an empty buffer, so it can neither refuse nor be
/// malformed.
const WORKS: [Work; 4] = [Work::None, Work::Done, Work::Answered, Work::AnsweredTwice];
/// The endings. The memory of a balloon that is stopped is back, so there is nothing to withdraw.
const ENDINGS: &[Ending] = Ending::ALL.split_last().expect("there are endings").1;

/// Runs all cases, each with a new host; of the numbers of steps, one in `interval`.
fn run_all(interval: u32, mut run: impl FnMut(&Host, Service, Cut) -> bool) {
    for service in [Service::Give, Service::Hint, Service::TakeBack] {
        Cut::each(service, (&WORKS, ENDINGS), interval, |cut| {
            // The driver reads the status very often before it gives up, so try this less often.
            if cut.ending == Ending::StuckInReset && (cut.steps % 5 != 0 || cut.work != Work::None)
            {
                return false;
            }
            let host = transport::host(Features::all(), QueueNumbering::Dense);
            run(&host, service, cut)
        });
    }
}

#[test]
fn nothing_is_lost_by_a_restart_after_any_step() {
    run_all(2, |host, service, cut| {
        let mut memory = TestMemory::new(0x1000, FRAMES);
        memory.report_from = Duration::ZERO;
        (memory.max_run, memory.max_report_ranges) = (300, 3);
        let device_side = host.clone();
        memory.on_device_reset = Box::new(move || {
            assert!(!device_side.borrow().has_buffers(), "the device may still write to memory");
            assert!(device_side.borrow().device.balloon.is_empty());
        });
        cut.make(&mut Cutting::begin(host, &mut Mock(memory), service))
    });
}

#[test]
fn the_engine_loses_nothing_by_a_restart_after_any_step() {
    run_all(7, |host, service, cut| {
        let ram = hotmem_testkit::Memory::new(SECTION);
        let frames = Frames::new(OneCpu);
        let _hotplug = hotmem_testkit::boot(&frames, &ram, SECTION);
        let free_at_start = frames.counts().free;
        let mut memory = EngineMemory::new(&frames, 1024);
        let settings = ReporterSettings { keep_free: Bytes::ZERO, ..ReporterSettings::EAGER };
        memory.report(Features::PAGE_REPORTING, Poison::None, settings).unwrap();
        let mut kernel = Engine { frames: &frames, memory, free_at_start };
        let has_more = cut.make(&mut Cutting::begin(host, &mut kernel, service));
        frames.validated().unwrap();
        has_more
    });
}
