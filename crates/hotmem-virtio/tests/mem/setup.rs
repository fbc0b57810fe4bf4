//! Defines a driver with a device and a memory manager, which are checked after every step.

use crate::device::Device;
use crate::memory::{TestMemory, Unit};
use core::time::Duration;
use hotmem::Bytes;
use hotmem::geometry::FRAME_SHIFT;
use hotmem_virtio::mem::{Driver, Features, Pending, RequestKind, Status, Step};

pub(crate) struct Setup {
    pub(crate) device: Device,
    pub(crate) driver: Driver,
    pub(crate) memory: TestMemory,
    pub(crate) now: Duration,
    /// The outstanding answer, and the number of polls until it arrives.
    pub(crate) outstanding_answer: Option<(Vec<u8>, u32)>,
}

/// The maximal number of steps between two waits.
const MAX_STEPS: u32 = 100_000;

impl Setup {
    pub(crate) fn new(mut device: Device) -> Setup {
        let driver = Driver::new(&device.read_config(), Features::empty()).unwrap();
        let config = driver.config();
        let memory = TestMemory::new(config.managed(), config.unit_frames());
        Setup { device, driver, memory, now: Duration::from_secs(1), outstanding_answer: None }
    }

    /// Begins a new driver, after a reset of the device: its answer to the outstanding request never
    /// arrives.
    pub(crate) fn restart(&mut self) {
        self.outstanding_answer = None;
        self.driver = Driver::new(&self.device.read_config(), Features::empty()).unwrap();
    }

    /// Makes a setup with a device of 1 GiB, of which 64 MiB are plugged.
    pub(crate) fn with_64_mib() -> Setup {
        let (mib, gib) = (Bytes::mib(1).0, Bytes::gib(1).0);
        let mut device = Device::new(2 * mib, 4 * gib, gib);
        device.resize(64 * mib);
        let mut setup = Setup::new(device);
        setup.poll();
        setup.assert_reached();
        setup
    }

    /// Steps the driver, and passes a request to the device.
    pub(crate) fn step(&mut self) -> Step {
        let arrived =
            self.outstanding_answer.take_if(|(_, polls)| *polls == 0).map(|(bytes, _)| bytes);
        if let Some((_, polls)) = &mut self.outstanding_answer {
            *polls -= 1;
        }
        let config = self.device.read_config();
        let answer = arrived.as_deref();
        let step = self.driver.step(self.now, &config, answer, &mut self.memory);
        if let Step::Ready(Ok(request)) = step {
            assert!(self.outstanding_answer.is_none(), "the driver sends a second request");
            let range = request.range();
            let managed = self.driver.config().managed();
            match request.kind() {
                RequestKind::Plug => assert!(self.memory.all_are(range, Unit::PreparedToPlug)),
                RequestKind::Unplug => assert!(
                    // The memory manager has no state for blocks that do not fill a unit.
                    range.frames() < self.driver.config().unit_frames()
                        || !managed.covers(range)
                        || self.memory.all_are(range, Unit::PreparedToUnplug)
                        || self.memory.all_are(range, Unit::Absent),
                    "UNPLUG of memory in use"
                ),
                RequestKind::UnplugAll => assert!(self.memory.all_are(managed, Unit::Absent)),
                RequestKind::State => {}
            }
            self.outstanding_answer = Some(self.device.handle(&request.to_bytes()));
        }
        self.check();
        step
    }

    /// Checks that the memory manager uses only plugged memory.
    fn check(&self) {
        assert!(
            self.driver.status() != Status::Reached || !self.memory.has_offline_memory,
            "plugged memory is offline"
        );
        for (i, &unit) in self.memory.units.iter().enumerate() {
            if unit == Unit::Plugged {
                assert!(self.is_plugged(i), "unit {i} may be used but is not plugged");
            }
        }
    }

    fn is_plugged(&self, unit: usize) -> bool {
        let config = self.device.config;
        let range = self.memory.range_of(unit);
        let block =
            |pfn: hotmem::Pfn| ((pfn.phys_addr() - config.addr) / config.block_size) as usize;
        self.device.blocks[block(range.start())..block(range.end())].iter().all(|&b| b)
    }

    /// Steps the driver until it waits. Waits for an outstanding answer.
    pub(crate) fn poll(&mut self) -> Step {
        for _ in 0..MAX_STEPS {
            let step = self.step();
            if !matches!(step, Step::Ready(Ok(_)) | Step::Working)
                && self.outstanding_answer.is_none()
            {
                return step;
            }
        }
        panic!("the driver does not wait: {:?}", self.driver);
    }

    /// Polls the driver for this time, at the times that it has returned.
    pub(crate) fn run(&mut self, time: Duration) -> Step {
        let end = self.now + time;
        loop {
            let step = self.poll();
            match step {
                Step::Pending(until) if until <= end => {
                    assert!(until > self.now, "the driver waits for a time in the past");
                    self.now = until;
                }
                _ => {
                    self.now = end;
                    return step;
                }
            }
        }
    }

    pub(crate) fn unit_bytes(&self) -> u64 {
        self.driver.config().unit_frames() << FRAME_SHIFT
    }

    /// Returns the plugged size that the driver must reach if no further faults occur.
    pub(crate) fn reachable_bytes(&self) -> u64 {
        let config = self.driver.config();
        let unit = config.unit_frames() << FRAME_SHIFT;
        let requested = self.device.config.requested_size / unit * unit;
        requested.min(config.usable_units().bytes().0)
    }

    /// Checks that the requested size is reached, rounded to whole units, and that the driver, the
    /// device and the memory manager agree.
    pub(crate) fn assert_reached(&self) {
        let unit = self.driver.config().unit_frames() << FRAME_SHIFT;
        let requested = Bytes(self.device.config.requested_size);
        let expected = match Bytes(self.reachable_bytes()) {
            reachable if reachable == requested => Status::Reached,
            reachable => {
                Status::Pending(Pending::Units { requested, reachable, unit: Bytes(unit) })
            }
        };
        assert_eq!(self.driver.status(), expected, "{:?}", self.driver);
        let plugged = self.memory.plugged_units() * unit;
        assert_eq!(plugged, self.reachable_bytes());
        assert_eq!(self.driver.plugged().0, plugged);
        assert_eq!(self.device.config.plugged_size, plugged);
        for (i, &state) in self.memory.units.iter().enumerate() {
            assert!(matches!(state, Unit::Plugged | Unit::Absent), "unit {i} is {state:?}");
            assert_eq!(state == Unit::Plugged, self.is_plugged(i), "unit {i}");
        }
    }
}
