//! Checks that the suite is a driver that follows the specification, except where a point says otherwise.

use hotmem_conformance::model::Model;
use hotmem_conformance::{
    BALLOON_POINTS, Clock, Device, Failure, GuestMemory, Host, Inaccessible, MEMORY_POINTS,
    Outcome, Point, Registers, Unsupported,
};
use std::ops::Range;
use std::time::{Duration, Instant};

const STATUS: u64 = 0x70;
const QUEUE_READY: u64 = 0x44;
const QUEUE_NUM: u64 = 0x38;
const QUEUE_NUM_MAX: u64 = 0x34;
const DRIVER_OK: u32 = 4;
/// Control registers that can be read (4.2.2).
const READABLE: [u64; 9] = [0x00, 0x04, 0x08, 0x10, QUEUE_NUM_MAX, QUEUE_READY, 0x60, STATUS, 0xfc];
/// Control registers that can be written.
const WRITABLE: [u64; 15] = [
    0x14,
    0x20,
    0x24,
    0x30,
    QUEUE_NUM,
    QUEUE_READY,
    0x50,
    0x64,
    STATUS,
    0x80,
    0x84,
    0x90,
    0x94,
    0xa0,
    0xa4,
];
const CONFIG: u64 = 0x100;
/// Fields of the configuration that a driver may write: `actual` and `poison_val` of a balloon.
const WRITABLE_CONFIG: [u64; 2] = [CONFIG + 4, CONFIG + 12];

/// A device that panics if its driver violates the specification.
struct Strict {
    model: Model,
    is_memory: bool,
    may_write_config: bool,
}

impl Strict {
    fn register(&mut self, offset: u64) -> u32 {
        let mut bytes = [0; 4];
        self.model.read(offset, &mut bytes);
        u32::from_le_bytes(bytes)
    }
}

impl Registers for Strict {
    fn read(&mut self, offset: u64, data: &mut [u8]) {
        let is_node = self.is_memory && offset == CONFIG + 8;
        if offset < CONFIG {
            assert!(READABLE.contains(&offset), "register {offset:#x} cannot be read");
        }
        assert!(
            data.len() == 4 || is_node && data.len() == 2,
            "{} bytes at {offset:#x}",
            data.len()
        );
        assert_eq!(offset % data.len() as u64, 0);
        self.model.read(offset, data);
    }

    fn write(&mut self, offset: u64, data: &[u8]) {
        let value = u32::from_le_bytes(data.try_into().expect("a register has 4 bytes"));
        assert_eq!(offset % 4, 0);
        if offset >= CONFIG {
            let is_writable = !self.is_memory && WRITABLE_CONFIG.contains(&offset);
            assert!(is_writable || self.may_write_config, "{offset:#x} is written");
        } else {
            assert!(WRITABLE.contains(&offset), "register {offset:#x} cannot be written");
        }
        match offset {
            QUEUE_NUM => {
                let max = self.register(QUEUE_NUM_MAX);
                assert!(value.is_power_of_two() && value <= max, "a queue of {value} of {max}");
            }
            0x80..0xa8 => assert_eq!(self.register(QUEUE_READY), 0, "the queue is ready"),
            0x50 => assert_ne!(self.register(STATUS) & DRIVER_OK, 0, "notified before DRIVER_OK"),
            STATUS if value != 0 => {
                let before = self.register(STATUS);
                assert_eq!(before & !value, 0, "bits of the status are cleared: {value:#x}");
                let set = value & !before;
                assert!(set.is_power_of_two(), "{set:#x} is set in the status {before:#x}");
            }
            _ => {}
        }
        self.model.write(offset, data);
    }

    fn run(&mut self) {
        self.model.run();
    }
}

impl GuestMemory for Strict {
    fn ram(&self) -> Range<u64> {
        self.model.ram()
    }

    fn read_memory(&mut self, addr: u64, data: &mut [u8]) -> Result<(), Inaccessible> {
        let ram = self.model.ram();
        let result = self.model.read_memory(addr, data);
        assert!(ram.contains(&addr) || result.is_ok(), "unplugged memory is read");
        result
    }

    fn write_memory(&mut self, addr: u64, data: &[u8]) -> Result<(), Inaccessible> {
        let result = self.model.write_memory(addr, data);
        assert!(result.is_ok(), "unplugged memory is written");
        result
    }
}

impl Host for Strict {
    fn set_requested_size(&mut self, bytes: u64) -> Result<(), Unsupported> {
        self.model.set_requested_size(bytes)
    }

    fn take_interrupt(&mut self) -> Result<bool, Unsupported> {
        self.model.take_interrupt()
    }

    fn node(&mut self) -> Result<u16, Unsupported> {
        self.model.node()
    }

    fn set_balloon_pages(&mut self, pages: u32) -> Result<(), Unsupported> {
        self.model.set_balloon_pages(pages)
    }

    fn ask_statistics(&mut self) -> Result<(), Unsupported> {
        self.model.ask_statistics()
    }

    fn statistic(&mut self, tag: u16) -> Result<Option<u64>, Unsupported> {
        self.model.statistic(tag)
    }

    fn start_hints(&mut self) -> Result<(), Unsupported> {
        self.model.start_hints()
    }
}

/// Checks a point with a device that answers at once.
fn check(point: &Point, device: &mut dyn Device) -> Outcome {
    let start = Instant::now();
    let now = || start.elapsed();
    point.check(device, Clock::new(&now, Duration::from_secs(1)))
}

#[test]
fn every_point_accesses_registers_and_memory_as_a_driver_must() {
    for (points, is_memory) in [(MEMORY_POINTS, true), (BALLOON_POINTS, false)] {
        for point in points {
            let model = if is_memory { Model::memory(None) } else { Model::balloon(None) };
            // These points write what a driver must not write.
            let may_write_config = point.name.ends_with("config/read-only");
            let mut device = Strict { model, is_memory, may_write_config };
            assert_eq!(check(point, &mut device), Outcome::Passed, "{}", point.name);
        }
    }
}

#[test]
fn all_points_can_be_checked_with_the_same_device() {
    for (points, mut model) in
        [(MEMORY_POINTS, Model::memory(None)), (BALLOON_POINTS, Model::balloon(None))]
    {
        for point in points {
            assert_eq!(check(point, &mut model), Outcome::Passed, "{}", point.name);
        }
    }
}

#[test]
fn a_device_of_another_type_fails_every_point() {
    for point in MEMORY_POINTS {
        let failure = Failure::Differs { what: "DeviceID", expected: 24, found: 5 };
        let outcome = check(point, &mut Model::balloon(None));
        assert_eq!(outcome, Outcome::Failed(failure), "{}", point.name);
    }
}
