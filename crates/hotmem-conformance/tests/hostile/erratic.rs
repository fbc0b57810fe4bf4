//! A device whose behaviour a script determines. The fuzz target uses this file.

use hotmem_conformance::model::Model;
use hotmem_conformance::{
    BALLOON_POINTS, Clock, GuestMemory, Host, Inaccessible, MEMORY_POINTS, Registers, Unsupported,
};
use std::cell::Cell;
use std::ops::Range;
use std::time::Duration;

/// The bytes of RAM that hold the queues and the buffers of the suite.
const SHARED_BYTES: u64 = 9 * 4096;

/// Checks a point, chosen by `point`, with a device that follows `script`. The point must end, without a
/// panic.
pub(crate) fn run_script(point: u8, script: &[u8]) {
    let number = usize::from(point) % (MEMORY_POINTS.len() + BALLOON_POINTS.len());
    let (point, model) = match MEMORY_POINTS.get(number) {
        Some(point) => (point, Model::memory(None)),
        None => (&BALLOON_POINTS[number - MEMORY_POINTS.len()], Model::balloon(None)),
    };
    // Time passes only when it is read.
    let time = Cell::new(Duration::ZERO);
    let now = || {
        time.set(time.get() + Duration::from_millis(20));
        time.get()
    };
    let clock = Clock::new(&now, Duration::from_secs(1));
    let mut device = Erratic { model, script: script.iter() };
    let _any = point.check(&mut device, clock);
}

/// A model that sometimes answers anything, ignores what it is told, and writes anywhere into the memory
/// that it shares with the driver.
struct Erratic<'a> {
    model: Model,
    /// One byte for each decision, and the values that it needs. At the end, the device becomes regular.
    script: std::slice::Iter<'a, u8>,
}

impl Erratic<'_> {
    fn is_erratic(&mut self) -> bool {
        self.script.next().is_some_and(|&byte| byte < 4)
    }

    /// Returns a value, which often is a border.
    fn value(&mut self) -> u64 {
        match self.script.next() {
            None | Some(0..64) => 0,
            Some(64..128) => u64::MAX,
            Some(&byte @ 128..192) => u64::from(byte) - 128,
            Some(_) => u64::from_le_bytes([(); 8].map(|()| *self.script.next().unwrap_or(&0))),
        }
    }
}

impl Registers for Erratic<'_> {
    fn read(&mut self, offset: u64, data: &mut [u8]) {
        self.model.read(offset, data);
        if self.is_erratic() {
            data.copy_from_slice(&self.value().to_le_bytes()[..data.len()]);
        }
    }

    fn write(&mut self, offset: u64, data: &[u8]) {
        if !self.is_erratic() {
            self.model.write(offset, data);
        }
    }

    fn run(&mut self) {
        self.model.run();
        if self.is_erratic() {
            let addr = self.model.ram().start + self.value() % SHARED_BYTES / 2 * 2;
            let bytes = self.value().to_le_bytes();
            self.model.write_memory(addr, &bytes[..2]).expect("the address lies in RAM");
        }
    }
}

impl GuestMemory for Erratic<'_> {
    fn ram(&self) -> Range<u64> {
        self.model.ram()
    }

    fn read_memory(&mut self, addr: u64, data: &mut [u8]) -> Result<(), Inaccessible> {
        self.model.read_memory(addr, data)
    }

    fn write_memory(&mut self, addr: u64, data: &[u8]) -> Result<(), Inaccessible> {
        self.model.write_memory(addr, data)
    }
}

impl Host for Erratic<'_> {
    fn set_requested_size(&mut self, bytes: u64) -> Result<(), Unsupported> {
        if self.is_erratic() { Ok(()) } else { self.model.set_requested_size(bytes) }
    }

    fn take_interrupt(&mut self) -> Result<bool, Unsupported> {
        let has_interrupted = self.model.take_interrupt()?;
        Ok(has_interrupted ^ self.is_erratic())
    }

    fn node(&mut self) -> Result<u16, Unsupported> {
        self.model.node()
    }

    fn set_balloon_pages(&mut self, pages: u32) -> Result<(), Unsupported> {
        if self.is_erratic() { Ok(()) } else { self.model.set_balloon_pages(pages) }
    }

    fn ask_statistics(&mut self) -> Result<(), Unsupported> {
        if self.is_erratic() { Ok(()) } else { self.model.ask_statistics() }
    }

    fn statistic(&mut self, tag: u16) -> Result<Option<u64>, Unsupported> {
        self.model.statistic(tag)
    }

    fn start_hints(&mut self) -> Result<(), Unsupported> {
        if self.is_erratic() { Ok(()) } else { self.model.start_hints() }
    }
}
