//! Drives a memory device, and compares what the device, the driver and the memory manager believe.

use crate::bridge::{Bridge, CONFIG};
use crate::memory::{TestMemory, Unit};
use crate::random::Random;
use core::time::Duration;
use hotmem_conformance::Device as OtherDevice;
use hotmem_virtio::mem::{Device, Pending, Progress, Status};
use std::collections::BTreeMap;
use std::thread;

/// A device with its driver and its memory manager.
pub(crate) struct Case<D: OtherDevice> {
    bridge: Bridge<D>,
    /// The driver, unless it has ended.
    driver: Option<Device<Bridge<D>>>,
    memory: TestMemory,
    now: Duration,
    /// What the guest has written to plugged units, if it can access their memory.
    contents: Option<BTreeMap<usize, u64>>,
    writes: u64,
}

impl<D: OtherDevice> Case<D> {
    /// Starts a driver. `has_memory` says whether the guest can access plugged memory.
    pub(crate) fn new(device: D, has_memory: bool) -> Case<D> {
        let bridge = Bridge::new(device);
        let driver = Device::new(bridge.clone(), bridge.queues()).unwrap();
        let config = driver.driver().config();
        let memory = TestMemory::new(config.managed(), config.unit_frames());
        let contents = has_memory.then(BTreeMap::new);
        let now = Duration::from_secs(1);
        Case { bridge, driver: Some(driver), memory, now, contents, writes: 0 }
    }

    fn driver(&mut self) -> &mut Device<Bridge<D>> {
        self.driver.as_mut().expect("there is a driver")
    }

    /// Returns the sizes in bytes of a block, of a unit and of the region.
    fn sizes(&mut self) -> [u64; 3] {
        let block = self.bridge.machine().register(CONFIG);
        let config = self.driver().driver().config();
        [block.into(), 4096 * config.unit_frames(), 4096 * config.managed().frames()]
    }

    fn request(&mut self, bytes: u64) {
        self.bridge.machine().device.set_requested_size(bytes).unwrap();
    }

    /// Polls for so many steps, and forgets what was written to memory that is unplugged.
    fn poll(&mut self, steps: u32) -> Progress {
        let Case { driver, memory, now, contents, .. } = self;
        let driver = driver.as_mut().expect("there is a driver");
        let mut progress = Progress::Working;
        for _ in 0..steps {
            progress = driver.poll(*now, 1, memory);
            if let Some(contents) = contents {
                contents.retain(|&unit, _| memory.units[unit] != Unit::Absent);
            }
        }
        progress
    }

    /// Ends the driver at this moment, and starts another one.
    fn restart(&mut self) {
        self.driver = None;
        self.driver = Some(Device::new(self.bridge.clone(), self.bridge.queues()).unwrap());
    }

    /// Polls until the requested size is plugged, as far as it consists of whole units.
    fn settle(&mut self) {
        let limit = hotmem_time_limit::scaled(Duration::from_secs(20));
        let start = std::time::Instant::now();
        loop {
            let progress = self.poll(1);
            assert!(!matches!(progress, Progress::Ready(_)), "{progress:?}");
            let at_rest = matches!(
                self.driver().driver().status(),
                Status::Reached | Status::Pending(Pending::Units { .. })
            );
            if at_rest && progress == Progress::Idle {
                return;
            }
            assert!(start.elapsed() < limit, "{:?}", self.driver().driver());
            if !matches!(progress, Progress::Working) {
                // A device on a thread of its own answers later.
                thread::sleep(Duration::from_micros(50));
                self.now += Duration::from_millis(1);
            }
        }
    }

    /// Checks that exactly this size is plugged, that what was written is still there, and writes to what
    /// is new.
    fn check(&mut self, requested: u64) {
        let [_, unit, _] = self.sizes();
        let expected = requested / unit * unit;
        assert_eq!(self.driver().driver().plugged().0, expected);
        assert_eq!(self.driver().driver().config().requested().0, requested);
        assert_eq!(self.memory.plugged_units() * unit, expected);
        let plugged_size = u64::from(self.bridge.machine().register(CONFIG + 40));
        assert_eq!(plugged_size, expected & 0xffff_ffff, "plugged_size");
        let Some(contents) = &mut self.contents else { return };
        for (number, &state) in self.memory.units.iter().enumerate() {
            let range = self.memory.range_of(number);
            let last = 4096 * range.end().number() - 8;
            let mut machine = self.bridge.machine();
            if state != Unit::Plugged {
                continue;
            }
            if let Some(written) = contents.get(&number) {
                for addr in [range.start().phys_addr(), last] {
                    assert_eq!(machine.read_memory(addr), written.to_le_bytes(), "{addr:#x}");
                }
            } else {
                self.writes += 0x0101_0101;
                contents.insert(number, self.writes);
                for addr in [range.start().phys_addr(), last] {
                    machine.write_memory(addr, &self.writes.to_le_bytes()).unwrap();
                }
            }
        }
    }

    fn resize(&mut self, bytes: u64) {
        self.request(bytes);
        self.settle();
        self.check(bytes);
    }
}

/// Plugs and unplugs to sizes that are whole units, and to others.
pub(crate) fn follows_each_size<D: OtherDevice>(mut case: Case<D>) {
    let [block, unit, region] = case.sizes();
    let sizes = [0, block, unit - block, unit, unit + block, region - unit, region, region / 2, 0];
    for size in sizes.into_iter().chain((0..=region / unit).map(|units| units * unit)) {
        case.resize(size);
    }
}

/// Follows random requests, of which some change while the driver works, with random restarts.
pub(crate) fn follows_random_requests<D: OtherDevice>(mut case: Case<D>, requests: u32) {
    let [block, _, region] = case.sizes();
    let mut random = Random::new();
    for _ in 0..requests {
        let size = block * random.below(region / block + 1);
        case.request(size);
        if random.below(3) == 0 {
            case.poll(random.below(8) as u32);
            continue;
        }
        if random.below(6) == 0 {
            case.poll(random.below(8) as u32);
            case.restart();
        }
        case.settle();
        case.check(size);
    }
}

/// Ends the driver after each number of steps of a resize, and starts another one.
pub(crate) fn survives_a_restart_after_each_step<D: OtherDevice>(new: impl Fn() -> Case<D>) {
    let [_, unit, region] = new().sizes();
    for (from, to) in [(0, region), (region, unit), (region, 0), (unit, region)] {
        let mut case = new();
        for steps in 0.. {
            case.resize(from);
            case.request(to);
            let is_at_rest = case.poll(steps) == Progress::Idle;
            case.restart();
            case.settle();
            case.check(to);
            if is_at_rest {
                break;
            }
        }
    }
}
