//! Free memory is reported to the host, which takes it back until it is used again.

use crate::pci::{self, Transport};
use axalloc::FRAMES;
use axhal::time::monotonic_time;
use axstd::println;
use core::time::Duration;
use hotmem::{Bytes, report::Settings};
use hotmem_port::LatePlatform;
use hotmem_virtio::balloon::{Device, Driver, EngineMemory, Features, Poison, Progress, Wanted};
use virtio_drivers::transport::DeviceType;

/// The time from one look for free memory to the next.
const PAUSE: Duration = Duration::from_millis(10);

/// A virtio-balloon device that takes reports.
pub struct Reporting {
    device: Device<Transport>,
    /// With as many pieces for a balloon as there must be: none is asked for.
    memory: EngineMemory<'static, LatePlatform, 2>,
    said: u64,
}

impl Reporting {
    /// Starts the device, if there is one.
    pub fn start() -> Option<Reporting> {
        let transport = pci::find(DeviceType::MemoryBalloon)?;
        let queues = pci::shared_memory(Device::<Transport>::MEMORY_SIZE)?;
        let features = Features::PAGE_REPORTING | Features::VERSION_1;
        let wanted = Wanted { features, poison: Poison::None, patience: Driver::PATIENCE };
        let device = Device::new(transport, queues, wanted).ok()?;
        let mut memory = EngineMemory::new(&FRAMES, 0);
        let settings = Settings { keep_free: Bytes::ZERO, ..Settings::EAGER };
        memory.report(device.driver().features(), Poison::None, settings).ok()?;
        Some(Reporting { device, memory, said: 0 })
    }

    /// Reports what has become free, for a while, and says so when all of it has been reported.
    /// Returns when to look again: what becomes free meanwhile wakes nobody.
    pub fn poll(&mut self) -> Duration {
        self.device.ack_interrupt();
        let progress = self.device.poll(monotonic_time(), 64, &mut self.memory);
        let counters = self.device.driver().counters();
        if progress == Progress::Idle && counters.reported != self.said {
            let (bytes, requests) = ((counters.reported - self.said) << 12, counters.reports);
            println!(r#"{{"event":"reported","bytes":{bytes},"requests":{requests},"hinted":0}}"#);
            self.said = counters.reported;
        }
        monotonic_time() + PAUSE
    }
}
