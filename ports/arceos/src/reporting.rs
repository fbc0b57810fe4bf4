//! Reports free memory to the host, which frees it until the guest uses it again.

use crate::pci::{self, Transport};
use alloc::boxed::Box;
use axalloc::FRAMES;
use axhal::time::monotonic_time;
use axstd::println;
use core::error::Error;
use core::time::Duration;
use hotmem::{Bytes, report::ReporterSettings};
use hotmem_port::ConfigurablePlatform;
use hotmem_virtio::balloon::{
    BalloonOptions, Device, Driver, EngineMemory, Failure, Features, InitError, Poison, Progress,
};
use virtio_drivers::transport::DeviceType;

/// The interval between two searches for free memory.
const SEARCH_INTERVAL: Duration = Duration::from_millis(10);

/// A virtio-balloon device that takes reports.
pub struct Reporting {
    device: Device<Transport>,
    memory: EngineMemory<'static, ConfigurablePlatform>,
    /// The total number of reported frames when the last event was printed.
    printed_frames: u64,
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
        Ok(Reporting { device, memory, printed_frames: 0 })
    }

    /// Reports free memory for a limited time. Prints an event when all free memory has been
    /// reported. Returns the time for the next call, because freeing memory wakes no thread.
    ///
    /// # Errors
    /// The driver has stopped.
    pub fn poll(&mut self) -> Result<Duration, Failure> {
        self.device.ack_interrupt();
        let progress = self.device.poll(monotonic_time(), 64, &mut self.memory);
        if let Progress::Ready(failure) = progress {
            return Err(failure);
        }
        let counters = self.device.driver().counters();
        if progress == Progress::Idle && counters.reported_frames != self.printed_frames {
            let (bytes, requests) =
                ((counters.reported_frames - self.printed_frames) << 12, counters.reports);
            println!(r#"{{"event":"reported","bytes":{bytes},"requests":{requests},"hinted":0}}"#);
            self.printed_frames = counters.reported_frames;
        }
        Ok(monotonic_time() + SEARCH_INTERVAL)
    }
}
