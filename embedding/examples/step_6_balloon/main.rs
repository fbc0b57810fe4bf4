//! Step 6: a balloon beside the virtio-mem device. The host takes memory, gets free memory reported, and
//! unplugs memory of which the balloon holds a part.
#![no_std]
#![no_main]

#[path = "../step_4_mapping/mapping.rs"]
mod mapping;
#[path = "../step_5_virtio_mem/pci.rs"]
mod pci;
#[path = "../step_5_virtio_mem/shared_memory.rs"]
mod shared_memory;

use hotmem::report::ReporterSettings;
use hotmem::{BootMap, BootRange, Budget, Bytes, Frames, Hotplug, OneCpu, OnlineType};
use hotmem::{Hooks, Migration, PfnRange, Progress};
use hotmem_embedding::{Boot, PrintedError, kernel, now, println};
use hotmem_virtio::balloon::{self, BalloonOptions, EngineMemory, Features, InitError, Poison};
use hotmem_virtio::dma::DmaMemory;
use hotmem_virtio::mem::{HotplugDevice, HotplugMemory, Status};
use mapping::KernelMapping;
use shared_memory::shared_memory;
use spin::Mutex;
use virtio_drivers::transport::{DeviceType, pci::PciTransport};

kernel!(main);

static FRAMES: Frames<OneCpu> = Frames::new(OneCpu);

type BalloonDevice = balloon::Device<PciTransport>;
type BalloonMemory = EngineMemory<'static, OneCpu>;

/// The balloon, in a `static` because it is larger than a quarter of this kernel's stack.
static BALLOON: Mutex<(Option<BalloonDevice>, Option<BalloonMemory>)> = Mutex::new((None, None));

/// The size of the balloon that the host is asked for. The smallest machine has 64 MiB.
const BALLOON_SIZE: Bytes = Bytes::mib(16);
/// The number of frames that the balloon leaves to the kernel.
const MIN_FREE: u64 = 256;

/// The kernel's hooks: memory in the balloon can be replaced by other memory, so that a balloon does not
/// block an unplug. Other memory of this kernel does not move.
struct BalloonMoves<'a>(&'a mut BalloonMemory);

impl Hooks for BalloonMoves<'_> {
    fn migrate(&mut self, used: PfnRange) -> Migration {
        self.0.migrate(used).unwrap_or(Migration::Unmovable("it belongs to the kernel"))
    }
}

fn main(boot: &Boot) -> Result<(), PrintedError> {
    let ram = boot.mapped_ram().map(BootRange::from);
    let reserved = boot.in_use().map(BootRange::from);
    let map = BootMap { reserved: &reserved, ..BootMap::from(&ram) };
    let mapping = KernelMapping::take_over_boot_tables()?;
    // SAFETY: the boot code has mapped all RAM of the boot map. What of it is in use is reserved: the
    // image, with the stack and the page tables, and the memory of the firmware.
    let mut hotplug = unsafe { Hotplug::bootstrap(&FRAMES, mapping, map) }?;
    for ram in boot.unmapped_ram() {
        mapping::add_boot_ram(&mut hotplug, ram)?;
    }

    let transport = pci::find(DeviceType::Memory, &mut hotplug)?;
    let queue = shared_memory(&FRAMES, HotplugDevice::<PciTransport, OneCpu>::MEMORY_SIZE)?;
    let memory = HotplugMemory::new(OnlineType::Movable, Budget { pageblocks: 64 });
    let mut virtio_mem = HotplugDevice::new(transport, queue, memory)?;

    let (device_place, memory_place) = &mut *BALLOON.lock();
    let balloon = start_balloon(&mut hotplug, device_place)?;
    let balloon_memory = start_balloon_memory(balloon.driver().features(), memory_place)?;

    let mut host = Host::new(boot);
    loop {
        // A kernel polls a device when it interrupts, at the time in `Progress::Pending`, and the balloon
        // also after `Platform::wake_reporter` was called.
        let progress = balloon.poll(now(), 64, balloon_memory);
        if let Progress::Ready(failure) = progress {
            return Err(failure.into());
        }
        let mut hooks = BalloonMoves(balloon_memory);
        let resized = virtio_mem.poll(now(), 1000, &mut hotplug, &mut hooks);
        if let Progress::Ready(failure) = resized.map_err(|_| "another instance's memory")? {
            return Err(failure.into());
        }
        let plugged = virtio_mem.driver().plugged();
        let has_reached = virtio_mem.driver().status() == Status::Reached;
        if host.is_done(balloon, progress, has_reached.then_some(plugged)) {
            return Ok(());
        }
    }
}

/// Starts the balloon device, and puts it into its place.
fn start_balloon<'a>(
    hotplug: &mut Hotplug<'static, OneCpu, KernelMapping>,
    place: &'a mut Option<BalloonDevice>,
) -> Result<&'a mut BalloonDevice, PrintedError> {
    let transport = pci::find(DeviceType::MemoryBalloon, hotplug)?;
    let queues = shared_memory(&FRAMES, BalloonDevice::MEMORY_SIZE)?;
    let options = BalloonOptions {
        // Reports, hints during a migration of the machine, and statistics, if the device has them.
        // Step 7 says what else a device may offer.
        features: Features::all().usable_with(&FRAMES),
        poison: Poison::None,
        answer_timeout: balloon::Driver::DEFAULT_ANSWER_TIMEOUT,
    };
    start_device(transport, queues, options, place)
}

/// Starts the device. It takes a quarter of the stack, so that this function does nothing else.
#[inline(never)]
fn start_device(
    transport: PciTransport,
    queues: DmaMemory,
    options: BalloonOptions,
    place: &mut Option<BalloonDevice>,
) -> Result<&mut BalloonDevice, PrintedError> {
    put(place, BalloonDevice::new(transport, queues, options))
}

/// Puts the device into its place. This function alone moves it.
#[inline(never)]
fn put(
    place: &mut Option<BalloonDevice>,
    device: Result<BalloonDevice, InitError>,
) -> Result<&mut BalloonDevice, PrintedError> {
    match device {
        Ok(device) => Ok(place.insert(device)),
        Err(error) => Err(error.into()),
    }
}

/// Puts the memory manager of the balloon into its place. It must outlive the device.
#[inline(never)]
fn start_balloon_memory(
    features: Features,
    place: &mut Option<BalloonMemory>,
) -> Result<&mut BalloonMemory, PrintedError> {
    let memory = place.insert(EngineMemory::new(&FRAMES, MIN_FREE));
    memory.report(features, Poison::None, ReporterSettings::EAGER)?;
    Ok(memory)
}

/// What the host was asked to do last. `cargo xtask embed` types the commands into QEMU's monitor.
struct Host {
    /// The RAM of the machine in MiB, with the DIMM.
    ram: u64,
    asked: Asked,
}

enum Asked {
    Nothing,
    Balloon,
    Unplug,
    Deflate,
}

impl Host {
    fn new(boot: &Boot) -> Host {
        let ranges = boot.ram.iter().chain([&boot.dimm]);
        let bytes: u64 = ranges.map(|range| range.end - range.start).sum();
        Host { ram: bytes.next_multiple_of(4 << 20) / (1 << 20), asked: Asked::Nothing }
    }

    /// Prints what has been reached, and the next command. Returns whether all was reached. `plugged` is
    /// the plugged memory once the device has the size that was requested.
    fn is_done(
        &mut self,
        balloon: &BalloonDevice,
        progress: balloon::Progress,
        plugged: Option<Bytes>,
    ) -> bool {
        let held = Bytes(balloon.driver().inflated_frames() * 4096);
        match (&self.asked, plugged) {
            (Asked::Nothing, Some(Bytes(1..))) if progress == Progress::Idle => {
                let reported = balloon.driver().counters().reported_frames;
                println!("the host has {} MiB of free memory by reports", reported / 256);
                println!("(qemu) balloon {}", self.ram - (BALLOON_SIZE.0 >> 20));
                self.asked = Asked::Balloon;
            }
            (Asked::Balloon, _) if held == BALLOON_SIZE => {
                println!("the balloon holds {held}");
                println!("(qemu) qom-set /machine/peripheral/vmem0 requested-size 0");
                self.asked = Asked::Unplug;
            }
            (Asked::Unplug, Some(Bytes::ZERO)) => {
                println!("all memory is unplugged, and the balloon holds {held}");
                println!("(qemu) balloon {}", self.ram);
                self.asked = Asked::Deflate;
            }
            (Asked::Deflate, _) if held == Bytes::ZERO => {
                println!("the balloon is empty");
                return true;
            }
            _ => {}
        }
        false
    }
}
