//! Drives the virtio-balloon device on PCI, which returns free memory to the host.

use super::memory::{self, FRAMES};
use super::pci::{self, Config};
use super::report::{Event, write_event};
use super::time;
use core::fmt;
use core::ptr::NonNull;
use hotmem::geometry::PAGEBLOCK_FRAMES;
use hotmem::report::{ReporterError, ReporterSettings};
use hotmem::{Bytes, OneCpu, Pfn, PfnRange};
use hotmem_guest::to_usize;
use hotmem_guest_pseries::pci::{Bridge, ConfigTokens};
use hotmem_virtio::balloon::{
    BalloonOptions, Counters, Device, Driver, EngineMemory, Failure, Features, InitError, Poison,
    Progress, Queue, Status,
};
use hotmem_virtio::dma::DmaMemory;
use virtio_drivers::transport::pci::bus::PciRoot;
use virtio_drivers::transport::pci::{PciTransport, VirtioPciError, virtio_device_type};
use virtio_drivers::transport::{DeviceType, pci::bus::DeviceFunction};
use virtio_drivers::{BufferDirection, Hal, PhysAddr};

/// The kernel's memory that the balloon holds.
pub(super) type BalloonMemory = EngineMemory<'static, OneCpu>;

/// The amount of memory that the kernel keeps, whatever the host requests.
const MIN_FREE: Bytes = Bytes::mib(32);
/// The number of steps of the driver before events are polled again.
const STEPS_PER_POLL: u32 = 64;

/// The device, and the state that was last reported about it.
pub(super) struct Balloon {
    device: Device<PciTransport>,
    target_frames: u64,
    counters: Counters,
    /// The frames of the queues, which belong to the device until the machine ends.
    _queues: PfnRange,
}

/// The reason why the device cannot be used.
pub(super) enum BalloonError {
    /// The device has no valid registers.
    Registers(DeviceFunction),
    /// The device is not a valid virtio device.
    Pci(VirtioPciError),
    /// There is no memory for the device's queues.
    Queues,
    /// The device cannot be started.
    Init(InitError),
    /// The engine refuses a reporter for the device.
    Reporter(ReporterError),
}

impl Balloon {
    /// Finds the first balloon behind the bridge, if there is one, starts it, and puts its driver and its
    /// memory into their places.
    #[inline(never)]
    pub(super) fn find(
        pci: Option<(Bridge, ConfigTokens)>,
        place: &mut Option<Balloon>,
        memory_place: &mut Option<BalloonMemory>,
    ) -> Result<(), BalloonError> {
        let Some((bridge, tokens)) = pci else { return Ok(()) };
        let mut root = PciRoot::new(Config::new(bridge, tokens));
        let is_balloon = |info: &_| virtio_device_type(info) == Some(DeviceType::MemoryBalloon);
        let mut found = root.enumerate_bus(0).filter(|(_, info)| is_balloon(info));
        let Some((function, _)) = found.next() else { return Ok(()) };
        let mut window = bridge.window;
        if !pci::enable(&mut root, function, &mut window) {
            return Err(BalloonError::Registers(function));
        }
        let transport = PciTransport::new::<KernelHal, _>(&mut root, function);
        let transport = transport.map_err(BalloonError::Pci)?;
        Balloon::start(transport, place)?;
        let Some(balloon) = place else { return Ok(()) };
        balloon.start_memory(memory_place)
    }

    #[inline(never)]
    fn start(transport: PciTransport, place: &mut Option<Balloon>) -> Result<(), BalloonError> {
        let bytes = Device::<PciTransport>::MEMORY_SIZE;
        let queues = memory::alloc_contiguous(bytes.div_ceil(4096) as u64);
        let queues = queues.ok_or(BalloonError::Queues)?;
        let phys_addr = queues.start().phys_addr();
        let pointer = NonNull::new(pointer(phys_addr)).ok_or(BalloonError::Queues)?;
        // SAFETY: the frames are allocated and never freed. The driver does not negotiate an IOMMU,
        // so the device uses physical addresses.
        let shared = unsafe { DmaMemory::new(pointer, phys_addr, to_usize(queues.bytes().0)) };
        let options = BalloonOptions {
            features: Features::all(),
            poison: Poison::None,
            answer_timeout: Driver::DEFAULT_ANSWER_TIMEOUT,
        };
        match Device::new(transport, shared, options) {
            Ok(device) => {
                let counters = Counters::default();
                *place = Some(Balloon { device, target_frames: 0, counters, _queues: queues });
                Ok(())
            }
            Err(error) => Err(BalloonError::Init(error)),
        }
    }

    #[inline(never)]
    fn start_memory(&mut self, place: &mut Option<BalloonMemory>) -> Result<(), BalloonError> {
        Queue::ALL.into_iter().for_each(|queue| self.device.suppress_interrupts(queue));
        let memory = place.insert(EngineMemory::new(&FRAMES, MIN_FREE.frames()));
        // An idle kernel does not need its free memory, so all of it may be reported.
        let settings = ReporterSettings { keep_free: Bytes::ZERO, ..ReporterSettings::default() };
        let features = self.device.driver().features();
        memory.report(features, Poison::None, settings).map_err(BalloonError::Reporter)?;
        write_event(&Event::Balloon { features: features.bits() });
        Ok(())
    }

    /// Runs some steps of the driver. Returns whether the driver has more to do at once.
    pub(super) fn step(&mut self, memory: &mut BalloonMemory) -> Result<bool, Failure> {
        let progress = self.device.poll(time::now(), STEPS_PER_POLL, memory);
        let is_idle = match progress {
            Progress::Ready(failure) => return Err(failure),
            Progress::Working => false,
            _ => true,
        };
        self.report_changes(is_idle);
        Ok(!is_idle)
    }

    /// Requests `frames` frames back from the balloon, because the kernel has run out of memory. Returns
    /// whether any will be returned.
    pub(super) fn request_back(&self, frames: u64, memory: &mut BalloonMemory) -> bool {
        let may_deflate = self.device.driver().features().contains(Features::DEFLATE_ON_OOM);
        let will_return = may_deflate && memory.inflated_frames() > 0;
        if will_return {
            // Whole pageblocks, so that the next additions need not ask again.
            memory.need(frames.next_multiple_of(PAGEBLOCK_FRAMES as u64));
        }
        will_return
    }

    fn report_changes(&mut self, is_idle: bool) {
        let driver = self.device.driver();
        if matches!(driver.status(), Status::Settled) && driver.target() != self.target_frames {
            self.target_frames = driver.target();
            let [target, held] =
                [driver.target(), driver.inflated_frames()].map(|frames| Bytes(frames << 12));
            write_event(&Event::Inflated { target, held });
        }
        let now = *driver.counters();
        let before = self.counters;
        if is_idle && now.reported_frames > before.reported_frames {
            self.counters = now;
            write_event(&Event::Reported {
                bytes: Bytes((now.reported_frames - before.reported_frames) << 12),
                requests: now.reports - before.reports,
            });
        }
    }
}

/// Returns a pointer to a physical address.
fn pointer(phys_addr: u64) -> *mut u8 {
    core::ptr::with_exposed_provenance_mut(to_usize(phys_addr))
}

/// Provides frames for queues, and access to registers.
enum KernelHal {}

// SAFETY: `dma_alloc` returns zeroed frames that the engine has allocated and that have no other
// user until `dma_dealloc`. The MMU is off, so registers lie at the addresses that `pci::enable`
// has assigned.
unsafe impl Hal for KernelHal {
    fn dma_alloc(pages: usize, _: BufferDirection) -> (PhysAddr, NonNull<u8>) {
        // The crate treats address 0 as a failed allocation.
        let none = (0, NonNull::dangling());
        let Some(frames) = memory::alloc_contiguous(pages as u64) else { return none };
        let phys_addr = frames.start().phys_addr();
        let Some(pointer) = NonNull::new(pointer(phys_addr)) else { return none };
        // SAFETY: the frames were just allocated, so they have no other user.
        unsafe { pointer.write_bytes(0, to_usize(frames.bytes().0)) }
        (phys_addr, pointer)
    }

    unsafe fn dma_dealloc(phys_addr: PhysAddr, _: NonNull<u8>, pages: usize) -> i32 {
        let first = Pfn::containing(phys_addr);
        match first.and_then(|first| PfnRange::with_len(first, pages as u64)) {
            Some(frames) => {
                memory::free(frames);
                0
            }
            None => -1,
        }
    }

    unsafe fn mmio_phys_to_virt(phys_addr: PhysAddr, _: usize) -> NonNull<u8> {
        NonNull::new(pointer(phys_addr)).unwrap_or(NonNull::dangling())
    }

    unsafe fn share(buffer: NonNull<[u8]>, _: BufferDirection) -> PhysAddr {
        buffer.cast::<u8>().as_ptr().expose_provenance() as u64
    }

    unsafe fn unshare(_: PhysAddr, _: NonNull<[u8]>, _: BufferDirection) {}
}

impl fmt::Display for BalloonError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            BalloonError::Registers(function) => write!(f, "{function}: no valid BARs"),
            BalloonError::Pci(error) => error.fmt(f),
            BalloonError::Queues => f.write_str("no memory for the queues"),
            BalloonError::Init(error) => error.fmt(f),
            BalloonError::Reporter(error) => error.fmt(f),
        }
    }
}
