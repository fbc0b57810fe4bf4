//! A driver between a device and a memory manager, with everything checked after every step.

use crate::device::Device;
use crate::memory::{TestMemory, Unit};
use core::time::Duration;
use hotmem::Bytes;
use hotmem::geometry::FRAME_SHIFT;
use hotmem_virtio::mem::{Driver, Features, Pending, RequestKind, Status, Step};

pub(crate) struct World {
    pub(crate) device: Device,
    pub(crate) driver: Driver,
    pub(crate) memory: TestMemory,
    pub(crate) now: Duration,
    /// The answer on its way, and after how many polls it arrives.
    pub(crate) late: Option<(Vec<u8>, u32)>,
}

/// More steps than any test's device needs between two waits.
const STEPS: u32 = 100_000;

impl World {
    pub(crate) fn new(mut device: Device) -> World {
        let driver = Driver::new(&device.read_config(), Features::empty()).unwrap();
        let config = driver.config();
        let memory = TestMemory::new(config.managed(), config.unit_frames());
        World { device, driver, memory, now: Duration::from_secs(1), late: None }
    }

    /// Returns a device of 1 GiB, of which 64 MiB are plugged.
    pub(crate) fn with_64_mib() -> World {
        let (mib, gib) = (Bytes::mib(1).0, Bytes::gib(1).0);
        let mut device = Device::new(2 * mib, 4 * gib, gib);
        device.resize(64 * mib);
        let mut world = World::new(device);
        world.poll();
        world.assert_reached();
        world
    }

    /// Returns one step, and the request that comes of it.
    pub(crate) fn step(&mut self) -> Step {
        let arrived = self.late.take_if(|(_, polls)| *polls == 0).map(|(bytes, _)| bytes);
        if let Some((_, polls)) = &mut self.late {
            *polls -= 1;
        }
        let config = self.device.read_config();
        let answer = arrived.as_deref();
        let step = self.driver.step(self.now, &config, answer, &mut self.memory);
        if let Step::Send(request) = step {
            assert!(self.late.is_none(), "a second request on the queue");
            let range = request.range();
            let managed = self.driver.config().managed();
            match request.kind() {
                RequestKind::Plug => assert!(self.memory.all(range, Unit::PreparedToPlug)),
                RequestKind::Unplug => assert!(
                    // Blocks that make no whole unit are nothing to the memory manager.
                    range.frames() < self.driver.config().unit_frames()
                        || !managed.covers(range)
                        || self.memory.all(range, Unit::PreparedToUnplug)
                        || self.memory.all(range, Unit::Absent),
                    "UNPLUG of memory in use"
                ),
                RequestKind::UnplugAll => assert!(self.memory.all(managed, Unit::Absent)),
                RequestKind::State => {}
            }
            self.late = Some(self.device.handle(&request.to_bytes()));
        }
        self.check();
        step
    }

    /// What may be used is plugged.
    fn check(&self) {
        assert!(self.driver.status() != Status::Reached || !self.memory.offline, "not in use");
        for (i, &unit) in self.memory.units.iter().enumerate() {
            if unit == Unit::Plugged {
                assert!(self.is_plugged(i), "unit {i} may be used and is not plugged");
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

    /// Steps until there is something to wait for. An answer on its way is waited for here.
    pub(crate) fn poll(&mut self) -> Step {
        for _ in 0..STEPS {
            let step = self.step();
            if !matches!(step, Step::Send(_) | Step::Again) && self.late.is_none() {
                return step;
            }
        }
        panic!("the driver spins: {:?}", self.driver);
    }

    /// Polls whenever the driver asks for it, for so long.
    pub(crate) fn run(&mut self, time: Duration) -> Step {
        let end = self.now + time;
        loop {
            let step = self.poll();
            match step {
                Step::WaitUntil(until) if until <= end => {
                    assert!(until > self.now, "a wait for the past");
                    self.now = until;
                }
                rest => {
                    self.now = end;
                    return rest;
                }
            }
        }
    }

    /// Returns what the driver should end with, given time and no more faults.
    pub(crate) fn goal(&self) -> u64 {
        let config = self.driver.config();
        let unit = config.unit_frames() << FRAME_SHIFT;
        let requested = self.device.config.requested_size / unit * unit;
        requested.min(config.usable_units().bytes().0)
    }

    /// The device's size is reached, in whole units, and everybody agrees about it.
    pub(crate) fn assert_reached(&self) {
        let unit = self.driver.config().unit_frames() << FRAME_SHIFT;
        let requested = Bytes(self.device.config.requested_size);
        let expected = match Bytes(self.goal()) {
            all if all == requested => Status::Reached,
            reachable => {
                Status::Pending(Pending::Units { requested, reachable, unit: Bytes(unit) })
            }
        };
        assert_eq!(self.driver.status(), expected, "{:?}", self.driver);
        let plugged = self.memory.plugged_units() * unit;
        assert_eq!(plugged, self.goal());
        assert_eq!(self.driver.plugged().0, plugged);
        assert_eq!(self.device.config.plugged_size, plugged);
        for (i, &state) in self.memory.units.iter().enumerate() {
            assert!(matches!(state, Unit::Plugged | Unit::Absent), "unit {i} is {state:?}");
            assert_eq!(state == Unit::Plugged, self.is_plugged(i), "unit {i}");
        }
    }
}
