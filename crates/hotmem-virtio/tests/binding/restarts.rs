//! Ends and restarts the driver after every step of every exchange, with a device that has done its
//! work, or half of it, or nothing, and that answers late, twice or never, or resets itself.
//! Afterwards the device, the driver and the memory manager must agree, and no memory may be lost.

use crate::device::{Device as MockDevice, ERROR, Fault};
use crate::memory::{TestMemory, Unit};
use crate::neighbour::{MemDevice, Neighbour, REGION, hotplug_memory, new_device};
use crate::transport::{self, Host};
use crate::vmm::Vmm;
use crate::{BUDGET, MIB};
use core::time::Duration;
use hotmem::{AllocRequest, Bytes, Frames, NoHooks, OneCpu, PfnRange};
use hotmem_testkit::{Cut, Ending, Exchange, SECTION, Validated as _, Work};
use hotmem_virtio::mem::{HotplugMemory, Progress, ResetCause, Status};

/// The requested sizes before and after the change during which the driver ends. Each begins with
/// memory that an earlier kernel has plugged.
const RESIZES: [(u64, u64); 4] =
    [(0, 192 * MIB), (192 * MIB, 64 * MIB), (192 * MIB, 0), (64 * MIB, 66 * MIB)];

/// The kernel's side: a memory manager, and how it is polled and checked.
trait Kernel {
    fn poll(&mut self, device: &mut MemDevice, now: Duration, budget: u32) -> Progress;

    /// Removes all memory of the device, which is gone, and begins anew.
    fn withdraw(&mut self);

    /// Checks that exactly the blocks that the device has plugged are in use.
    fn check(&mut self, host: &Host);
}

struct Mock(TestMemory);

impl Mock {
    fn new() -> Mock {
        Mock(TestMemory::new(PfnRange::from_bytes(REGION, Bytes(REGION)).unwrap(), 512))
    }
}

impl Kernel for Mock {
    fn poll(&mut self, device: &mut MemDevice, now: Duration, budget: u32) -> Progress {
        device.poll(now, budget, &mut self.0)
    }

    fn withdraw(&mut self) {
        *self = Mock::new();
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
    neighbour: Option<Neighbour<'f>>,
}

impl Engine<'_, '_> {
    /// Lets the neighbour come to rest. Returns the number of frames that are neither boot memory nor
    /// the neighbour's: online and present ones.
    fn frames_of_device(&mut self, now: Duration) -> (u64, u64) {
        let hotplug = &mut *self.hotplug;
        let others = self.neighbour.as_mut().map_or(0, |other| other.finish(hotplug, now));
        let counts = self.frames.counts();
        (counts.online - SECTION - others, counts.present - SECTION - others)
    }
}

impl Kernel for Engine<'_, '_> {
    fn poll(&mut self, device: &mut MemDevice, now: Duration, budget: u32) -> Progress {
        if let Some(neighbour) = &mut self.neighbour {
            neighbour.step(self.hotplug, now);
        }
        let mut hooks = NoHooks;
        let mut memory = self.memory.bind(self.hotplug, &mut hooks).unwrap();
        device.poll(now, budget, &mut memory)
    }

    fn withdraw(&mut self) {
        loop {
            match self.memory.withdraw(self.hotplug, &mut NoHooks).unwrap() {
                hotmem::Progress::Working => {}
                hotmem::Progress::Ready(()) => break,
                progress => panic!("{progress:?}"),
            }
        }
        assert_eq!(self.frames_of_device(Duration::from_secs(100)), (0, 0));
        self.memory = hotplug_memory();
    }

    fn check(&mut self, host: &Host) {
        let host = host.borrow();
        let plugged = Bytes(host.device.config.plugged_size).frames();
        assert_eq!(self.frames_of_device(Duration::from_secs(100)), (plugged, plugged));
        for (block, &is_plugged) in (0..).zip(&host.device.blocks) {
            let at = hotmem_testkit::pfn(Bytes(host.device.config.addr + block * 2 * MIB).frames());
            let allocation = self.frames.alloc(AllocRequest::frames(1).movable().at(at));
            assert_eq!(allocation.is_ok(), is_plugged, "block {block}");
        }
        self.frames.validated().unwrap();
    }
}

/// A resize during which the driver ends.
struct Resize<'a, K> {
    host: &'a Host,
    kernel: &'a mut K,
    /// The device, unless it is stopped.
    device: Option<MemDevice>,
    to: u64,
    now: Duration,
}

impl<'a, K: Kernel> Resize<'a, K> {
    fn begin(host: &'a Host, kernel: &'a mut K, (from, to): (u64, u64)) -> Resize<'a, K> {
        host.borrow_mut().device.resize(from);
        for block in 0..(from / (4 * MIB)) as usize {
            host.borrow_mut().device.preplug(2 * block);
        }
        let device = Some(new_device(host));
        let mut resize = Resize { host, kernel, device, to, now: Duration::from_secs(1) };
        let is_first_start = from == 64 * MIB;
        if !is_first_start {
            resize.poll_to_end();
        }
        host.borrow_mut().device.resize(to);
        // While the device ignores its queues, it does not notice which size the driver has read.
        host.borrow_mut().device.requested_seen = to;
        host.borrow_mut().ignores_queues = true;
        resize
    }

    fn device(&mut self) -> &mut MemDevice {
        self.device.as_mut().expect("the device is not stopped")
    }

    fn poll(&mut self, budget: u32) -> Progress {
        let device = self.device.as_mut().expect("the device is not stopped");
        self.kernel.poll(device, self.now, budget)
    }

    /// Polls until the driver has nothing to do or has failed.
    fn poll_to_end(&mut self) -> Progress {
        for _ in 0..1000 {
            match self.poll(BUDGET) {
                Progress::Pending(until) => self.now = until,
                Progress::Working => {}
                progress => return progress,
            }
        }
        panic!("the driver does not come to rest: {:?}", self.device().driver());
    }

    /// Stops the device.
    fn stop(&mut self) {
        let device = self.device.take().expect("the device is not stopped");
        assert!(device.stop().is_ok());
        assert!(self.host.borrow().is_transport_dropped);
    }
}

impl<K: Kernel> Exchange for Resize<'_, K> {
    fn answer(&mut self) {
        self.host.serve();
    }

    fn step(&mut self) -> bool {
        !matches!(self.poll(1), Progress::Idle)
    }

    fn work(&mut self, work: Work) {
        let mut host = self.host.borrow_mut();
        let fault = match work {
            Work::HalfDone => Some(Fault::HalfDone),
            Work::Refused => Some(Fault::Refuse(ERROR)),
            Work::Malformed => Some(Fault::Bytes(&[0xff; 10])),
            _ => None,
        };
        host.device.faults.extend(fault);
        host.work(work);
        host.device.faults.clear();
    }

    fn end(&mut self, Cut { ending, .. }: Cut) {
        match ending {
            Ending::Late => {
                self.poll(BUDGET);
                self.host.borrow_mut().answer_late();
            }
            Ending::Silence => {
                for _ in 0..3 {
                    self.now += Duration::from_secs(1);
                    self.poll(BUDGET);
                }
                self.device().restart().unwrap();
            }
            Ending::ResetsItself | Ending::NeedsReset => {
                let resets = self.device().resets();
                self.host.borrow_mut().end(ending);
                self.poll(1);
                assert_eq!(self.device().resets(), resets + 1);
                let cause = self.device().take_reset().expect("the driver has reset the device");
                assert_eq!(cause == ResetCause::NeedsReset, ending == Ending::NeedsReset);
            }
            Ending::Restart => self.device().restart().unwrap(),
            Ending::FailedRestart => {
                self.host.borrow_mut().refuses_features = true;
                assert!(self.device().restart().is_err());
                let requests = self.device().driver().statistics().requests;
                let progress = self.poll(BUDGET);
                assert!(matches!(progress, Progress::Ready(_)), "{progress:?}");
                assert_eq!(self.device().driver().statistics().requests, requests);
                self.host.borrow_mut().refuses_features = false;
                self.device().restart().unwrap();
            }
            Ending::Drop => {
                self.device = None;
                self.device = Some(new_device(self.host));
            }
            Ending::Stop => {
                self.stop();
                self.device = Some(new_device(self.host));
            }
            Ending::StuckInReset => {
                self.host.borrow_mut().stuck_in_reset = true;
                let device = self.device.take().expect("the device is not stopped");
                self.device = device.stop().err();
                let progress = self.poll(BUDGET);
                assert!(matches!(progress, Progress::Ready(_)), "{progress:?}");
                self.host.borrow_mut().stuck_in_reset = false;
                self.stop();
                self.device = Some(new_device(self.host));
            }
            Ending::Withdraw => {
                self.stop();
                let mut host = self.host.borrow_mut();
                let blocks = host.device.blocks.len();
                host.device.set_plugged(0..blocks, false);
                drop(host);
                self.kernel.withdraw();
                self.device = Some(new_device(self.host));
            }
        }
    }

    fn finish(&mut self, cut: Cut) {
        self.host.borrow_mut().ignores_queues = false;
        for _ in 0..2 {
            if let Progress::Ready(failure) = self.poll_to_end() {
                // The device has failed, or cannot be trusted: the kernel starts it again.
                let is_good = matches!(cut.work, Work::None | Work::Done | Work::Answered);
                assert!(!is_good, "{failure}");
                self.device().restart().unwrap();
            }
        }
        for target in [self.to, REGION, 0] {
            self.host.borrow_mut().device.resize(target);
            assert_eq!(self.poll_to_end(), Progress::Idle);
            assert_eq!(self.device().driver().status(), Status::Reached);
            assert_eq!(self.device().driver().plugged(), Bytes(target));
            assert_eq!(self.host.borrow().device.config.plugged_size, target);
            self.kernel.check(self.host);
        }
    }
}

const ALL: (&[Work], &[Ending]) = (&Work::ALL, &Ending::ALL);
const FEW: (&[Work], &[Ending]) = (
    &[Work::None, Work::Done, Work::HalfDone],
    &[Ending::Late, Ending::NeedsReset, Ending::Restart, Ending::Drop, Ending::Withdraw],
);

/// Runs cases with these pairs, each with a new host; of the numbers of steps, one in `interval`.
fn run_all(
    vmm: Vmm,
    pairs: (&[Work], &[Ending]),
    interval: u32,
    mut run: impl FnMut(&Host, (u64, u64), Cut) -> bool,
) {
    for sizes in RESIZES {
        Cut::each(sizes, pairs, interval, |cut| {
            let host = transport::host(vmm, MockDevice::new(2 * MIB, REGION, REGION));
            run(&host, sizes, cut)
        });
    }
}

#[test]
fn nothing_is_lost_by_a_restart_after_any_step() {
    let strict = Vmm { slot_bytes: Some(64 * MIB), ..Vmm::STRICTEST };
    for (vmm, interval) in [(Vmm::QEMU, 19), (strict, 61)] {
        run_all(vmm, ALL, interval, |host, sizes, cut| {
            cut.make(&mut Resize::begin(host, &mut Mock::new(), sizes))
        });
    }
}

/// Runs cases on the engine, with a neighbour or without.
fn run_on_engine(pairs: (&[Work], &[Ending]), interval: u32, has_neighbour: bool) {
    run_all(Vmm::STRICTEST, pairs, interval, |host, sizes, cut| {
        let ram = hotmem_testkit::Memory::new(6 * SECTION);
        let frames = Frames::new(OneCpu);
        let mut hotplug = hotmem_testkit::boot(&frames, &ram, SECTION);
        let mut kernel = Engine {
            frames: &frames,
            hotplug: &mut hotplug,
            memory: hotplug_memory(),
            neighbour: has_neighbour.then(Neighbour::new),
        };
        cut.make(&mut Resize::begin(host, &mut kernel, sizes))
    });
}

#[test]
fn the_engine_loses_nothing_by_a_restart_after_any_step() {
    run_on_engine(ALL, 83, false);
}

#[test]
fn the_engine_loses_nothing_of_two_devices_by_a_restart_of_one() {
    run_on_engine(FEW, 83, true);
}
