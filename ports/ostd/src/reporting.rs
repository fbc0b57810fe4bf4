//! Drives the balloon, which gives the host the memory that the host requests, and reports free
//! memory to the host.

use crate::clock::now;
use crate::pci::{self, Transport};
use alloc::boxed::Box;
use core::error::Error;
use hotmem::{Bytes, report::ReporterSettings};
use hotmem_ostd_allocator::{Cpus, FRAMES};
use hotmem_virtio::balloon::{
    BalloonOptions, Device, Driver, EngineMemory, Failure, Features, InitError, Poison, Progress,
};
use ostd::prelude::println;
use virtio_drivers::transport::DeviceType;

/// A virtio-balloon device that takes reports.
pub struct Reporting {
    device: Device<Transport>,
    memory: EngineMemory<'static, Cpus>,
    /// The total number of reported frames when the last event was printed.
    printed_frames: u64,
    /// The size of the balloon when the last event was printed, in frames.
    printed_size: u64,
}

impl Reporting {
    /// Starts the device. Returns `None` if there is no device.
    pub fn start() -> Option<Result<Reporting, Box<dyn Error>>> {
        pci::find(DeviceType::MemoryBalloon).map(Reporting::start_device)
    }

    fn start_device(transport: Transport) -> Result<Reporting, Box<dyn Error>> {
        let queues = pci::shared_memory(Device::<Transport>::MEMORY_SIZE);
        let queues = queues.ok_or(InitError::SharedMemory)?;
        let features = Features::PAGE_REPORTING | Features::VERSION_1;
        let options = BalloonOptions {
            features,
            poison: Poison::None,
            answer_timeout: Driver::DEFAULT_ANSWER_TIMEOUT,
        };
        let device = Device::new(transport, queues, options)?;
        let mut memory = EngineMemory::new(&FRAMES, 0);
        let settings = ReporterSettings { keep_free: Bytes::ZERO, ..ReporterSettings::EAGER };
        memory.report(device.driver().features(), Poison::None, settings)?;
        Ok(Reporting { device, memory, printed_frames: 0, printed_size: 0 })
    }

    /// Carries out the host's requests and reports free memory, for a limited time. Prints an event
    /// when the balloon has reached the requested size, and when all free memory has been reported.
    ///
    /// # Errors
    /// The driver has stopped.
    pub fn poll(&mut self) -> Result<(), Failure> {
        let progress = self.device.poll(now(), 64, &mut self.memory);
        if let Progress::Ready(failure) = progress {
            return Err(failure);
        }
        let driver = self.device.driver();
        let (inflated, target) = (driver.inflated_frames(), driver.target());
        if inflated == target && inflated != self.printed_size {
            let bytes = inflated << 12;
            println!(r#"{{"event":"inflated","target":{},"held":{}}}"#, bytes, bytes);
            self.printed_size = inflated;
        }
        let counters = driver.counters();
        if progress == Progress::Idle && counters.reported_frames != self.printed_frames {
            println!(
                r#"{{"event":"reported","bytes":{},"requests":{},"hinted":0}}"#,
                (counters.reported_frames - self.printed_frames) << 12,
                counters.reports,
            );
            self.printed_frames = counters.reported_frames;
        }
        Ok(())
    }
}
