//! Ends and restarts the driver after every step of every exchange, with a device that has done its
//! work, or half of it, or nothing, and that answers late, twice or never, or resets itself.
//! Afterwards the device, the driver and the memory manager must agree, and no memory may be lost.

use crate::device::{Device as MockDevice, ERROR, Fault};
use crate::memory::{TestMemory, Unit};
use crate::transport::{self, Host, MockTransport};
use crate::vmm::Vmm;
use crate::{BUDGET, MIB};
use core::time::Duration;
use hotmem::{AllocRequest, Budget, Bytes, Frames, NoHooks, OneCpu, OnlineType};
use hotmem_testkit::{SECTION, Validated as _};
use hotmem_virtio::mem::{Device, HotplugMemory, Progress, Status};
use virtio_drivers::transport::DeviceStatus;

type MemDevice = Device<MockTransport>;

/// What the device does with the requests of the last step.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Work {
    /// It does not look at them.
    None,
    /// It carries them out and does not answer.
    Done,
    /// It carries out the first half and does not answer.
    HalfDone,
    /// It refuses them and does not answer.
    Refused,
    Answered,
    AnsweredTwice,
    /// It answers with bytes that are not a response.
    Malformed,
}

/// What happens next.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Ending {
    /// The device answers late.
    Late,
    /// The device does not answer in time, and the kernel starts it again.
    Silence,
    ResetsItself,
    NeedsReset,
    /// The kernel starts the device again at once.
    Restart,
    /// The first attempt to start the device again fails.
    FailedRestart,
    /// The kernel drops the device, and starts it anew.
    Drop,
}

const WORKS: [Work; 7] = [
    Work::None,
    Work::Done,
    Work::HalfDone,
    Work::Refused,
    Work::Answered,
    Work::AnsweredTwice,
    Work::Malformed,
];
const ENDINGS: [Ending; 7] = [
    Ending::Late,
    Ending::Silence,
    Ending::ResetsItself,
    Ending::NeedsReset,
    Ending::Restart,
    Ending::FailedRestart,
    Ending::Drop,
];

const REGION: u64 = 256 * MIB;
/// The requested sizes before and after the change during which the driver ends. Each begins with
/// memory that an earlier kernel has plugged.
const RESIZES: [(u64, u64); 4] =
    [(0, 192 * MIB), (192 * MIB, 64 * MIB), (192 * MIB, 0), (64 * MIB, 66 * MIB)];

/// The kernel's side: a memory manager, and how it is polled and checked.
trait Kernel {
    fn poll(&mut self, device: &mut MemDevice, now: Duration, budget: u32) -> Progress;

    /// Checks that exactly the blocks that the device has plugged are in use.
    fn check(&mut self, host: &Host);
}

struct Mock(TestMemory);

impl Kernel for Mock {
    fn poll(&mut self, device: &mut MemDevice, now: Duration, budget: u32) -> Progress {
        device.poll(now, budget, &mut self.0)
    }

    fn check(&mut self, host: &Host) {
        let host = host.borrow();
        for (unit, &is_plugged) in self.0.units.iter().zip(&host.device.blocks) {
            assert_eq!(*unit, if is_plugged { Unit::Plugged } else { Unit::Absent });
        }
    }
}

struct Engine<'a, 'f> {
    frames: &'f Frames<OneCpu>,
    hotplug: &'a mut hotmem::Hotplug<'f, OneCpu, hotmem::AlwaysMapped>,
    memory: HotplugMemory<'f, OneCpu>,
}

impl Kernel for Engine<'_, '_> {
    fn poll(&mut self, device: &mut MemDevice, now: Duration, budget: u32) -> Progress {
        let mut hooks = NoHooks;
        let mut memory = self.memory.bind(self.hotplug, &mut hooks).unwrap();
        device.poll(now, budget, &mut memory)
    }

    fn check(&mut self, host: &Host) {
        let host = host.borrow();
        let counts = self.frames.counts();
        let plugged = Bytes(host.device.config.plugged_size).frames();
        assert_eq!((counts.online - SECTION, counts.present - SECTION), (plugged, plugged));
        for (block, &is_plugged) in (0..).zip(&host.device.blocks) {
            let at = hotmem_testkit::pfn(Bytes(host.device.config.addr + block * 2 * MIB).frames());
            let allocation = self.frames.alloc(AllocRequest::frames(1).movable().at(at));
            assert_eq!(allocation.is_ok(), is_plugged, "block {block}");
        }
        self.frames.validated().unwrap();
    }
}

fn new_device(host: &Host) -> MemDevice {
    Device::new(host.transport(), host.page().dma(0)).unwrap()
}

/// Polls until the driver has nothing to do or has failed.
fn poll_to_end(kernel: &mut impl Kernel, device: &mut MemDevice, now: &mut Duration) -> Progress {
    for _ in 0..1000 {
        match kernel.poll(device, *now, BUDGET) {
            Progress::Pending(until) => *now = until,
            Progress::Working => {}
            progress => return progress,
        }
    }
    panic!("the driver does not come to rest: {:?}", device.driver());
}

/// One case: the driver ends after this number of steps.
#[derive(Clone, Copy, Debug)]
struct Case {
    from: u64,
    to: u64,
    steps: u32,
    work: Work,
    ending: Ending,
}

/// Runs one case. Returns whether the driver had a step left to make.
fn run(host: &Host, kernel: &mut impl Kernel, case: Case) -> bool {
    let mut now = Duration::from_secs(1);
    host.borrow_mut().device.resize(case.from);
    for block in 0..(case.from / (4 * MIB)) as usize {
        host.borrow_mut().device.preplug(2 * block);
    }
    let mut device = new_device(host);
    let is_first_start = case.from == 64 * MIB;
    if !is_first_start {
        poll_to_end(kernel, &mut device, &mut now);
    }
    host.borrow_mut().device.resize(case.to);
    // While the device ignores its queues, it does not notice which size the driver has read.
    host.borrow_mut().device.requested_seen = case.to;
    host.borrow_mut().ignores_queues = true;
    let mut has_more = true;
    for step in 0..case.steps {
        if step > 0 {
            host.serve();
        }
        has_more = !matches!(kernel.poll(&mut device, now, 1), Progress::Idle);
    }
    work(host, case.work);
    device = end(host, kernel, device, &mut now, case.ending);
    host.borrow_mut().ignores_queues = false;
    for _ in 0..2 {
        if let Progress::Ready(failure) = poll_to_end(kernel, &mut device, &mut now) {
            // The device has failed, or cannot be trusted: the kernel starts it again.
            let is_good = matches!(case.work, Work::None | Work::Done | Work::Answered);
            assert!(!is_good || case.ending == Ending::NeedsReset, "{failure}");
            device.restart().unwrap();
        }
    }
    for target in [case.to, REGION, 0] {
        host.borrow_mut().device.resize(target);
        assert_eq!(poll_to_end(kernel, &mut device, &mut now), Progress::Idle);
        assert_eq!(device.driver().status(), Status::Reached);
        assert_eq!(device.driver().plugged(), Bytes(target));
        assert_eq!(host.borrow().device.config.plugged_size, target);
        kernel.check(host);
    }
    has_more
}

/// Lets the device work on the outstanding request.
fn work(host: &Host, work: Work) {
    let fault = match work {
        Work::HalfDone => Some(Fault::HalfDone),
        Work::Refused => Some(Fault::Refuse(ERROR)),
        Work::Malformed => Some(Fault::Bytes(&[0xff; 10])),
        _ => None,
    };
    host.borrow_mut().device.faults.extend(fault);
    match work {
        Work::None => {}
        Work::Done | Work::HalfDone | Work::Refused => host.borrow_mut().carry_out(),
        Work::Answered | Work::Malformed => host.serve(),
        Work::AnsweredTwice => host.borrow_mut().serve_twice(),
    }
    host.borrow_mut().device.faults.clear();
}

/// Ends the driver, unless the device only answers late, and starts it again.
fn end(
    host: &Host,
    kernel: &mut impl Kernel,
    mut device: MemDevice,
    now: &mut Duration,
    ending: Ending,
) -> MemDevice {
    match ending {
        Ending::Late => {
            kernel.poll(&mut device, *now, BUDGET);
            host.borrow_mut().answer_late();
        }
        Ending::Silence => {
            for _ in 0..3 {
                *now += Duration::from_secs(1);
                kernel.poll(&mut device, *now, BUDGET);
            }
            device.restart().unwrap();
        }
        Ending::ResetsItself | Ending::NeedsReset => {
            match ending {
                Ending::ResetsItself => host.borrow_mut().reset(),
                _ => host.borrow_mut().status |= DeviceStatus::DEVICE_NEEDS_RESET,
            }
            let progress = poll_to_end(kernel, &mut device, now);
            assert!(matches!(progress, Progress::Ready(_)), "{progress:?}");
            device.restart().unwrap();
        }
        Ending::Restart => device.restart().unwrap(),
        Ending::FailedRestart => {
            host.borrow_mut().refuses_features = true;
            assert!(device.restart().is_err());
            let requests = device.driver().statistics().requests;
            let progress = kernel.poll(&mut device, *now, BUDGET);
            assert!(matches!(progress, Progress::Ready(_)), "{progress:?}");
            assert_eq!(device.driver().statistics().requests, requests);
            host.borrow_mut().refuses_features = false;
            device.restart().unwrap();
        }
        Ending::Drop => {
            drop(device);
            return new_device(host);
        }
    }
    device
}

/// Runs all cases, each with a new host; of the numbers of steps, one in `interval`.
fn run_all(vmm: Vmm, interval: usize, mut run_case: impl FnMut(&Host, Case) -> bool) {
    for (from, to) in RESIZES {
        for steps in (1..).step_by(interval) {
            let mut has_more = false;
            for (work, ending) in WORKS.into_iter().flat_map(|work| ENDINGS.map(|end| (work, end)))
            {
                let case = Case { from, to, steps, work, ending };
                let _case = PrintedOnPanic(case);
                let host = transport::host(vmm, MockDevice::new(2 * MIB, REGION, REGION));
                has_more |= run_case(&host, case);
            }
            if !has_more {
                break;
            }
            assert!(steps < 500, "the driver does not come to rest");
        }
    }
}

/// Returns the interval of the numbers of steps that are tried: all in a deep test.
fn interval(normal: usize) -> usize {
    if std::env::var_os("HOTMEM_DEEP").is_some() { 1 } else { normal }
}

/// Prints a case if it is dropped by a panic.
struct PrintedOnPanic(Case);

impl Drop for PrintedOnPanic {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("in the case: {:?}", self.0);
        }
    }
}

#[test]
fn nothing_is_lost_by_a_restart_after_any_step() {
    let strict = Vmm { slot_bytes: Some(64 * MIB), ..Vmm::STRICTEST };
    for (vmm, interval) in [(Vmm::QEMU, interval(5)), (strict, interval(17))] {
        run_all(vmm, interval, |host, case| {
            let region = hotmem::PfnRange::from_bytes(REGION, Bytes(REGION)).unwrap();
            run(host, &mut Mock(TestMemory::new(region, 512)), case)
        });
    }
}

#[test]
fn the_engine_loses_nothing_by_a_restart_after_any_step() {
    run_all(Vmm::STRICTEST, interval(29), |host, case| {
        let ram = hotmem_testkit::Memory::new(4 * SECTION);
        let frames = Frames::new(OneCpu);
        let mut hotplug = hotmem_testkit::boot(&frames, &ram, SECTION);
        let memory = HotplugMemory::new(OnlineType::Movable, Budget { pageblocks: 64 });
        run(host, &mut Engine { frames: &frames, hotplug: &mut hotplug, memory }, case)
    });
}
