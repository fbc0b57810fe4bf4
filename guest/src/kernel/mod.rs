//! The kernel: from the loader's jump to the verdict.

mod acpi;
mod boot_memory;
mod clock;
mod device;
mod entry;
mod exit;
mod hal;
mod hooks;
mod manager;
mod memory;
mod pci;
mod pic;
mod pit;
mod serial;
mod session;
mod trap;
mod workload;

use boot_memory::{BootMapping, LoaderMap, MAX_ENTRIES, MAX_MODULES};
use core::fmt;
use hooks::KernelHooks;
use hotmem::{Bytes, OnlineType};
use hotmem_guest::cmdline::{ExitWhen, Online, Options};
use hotmem_guest::event::Event;
use hotmem_guest::pvh::{MemoryMapEntry, StartInfo};
use hotmem_guest::report::{Report, bail_out};
use hotmem_guest::watchdog::{Step, Watchdog};
use manager::Manager;
use serial::Serial;
use session::Session;
use workload::Workload;

static WATCHDOG: Watchdog = Watchdog::new();

/// A tick counts for the watchdog, and looks at the device in case an interrupt got lost.
const TICKS_PER_SECOND: u32 = 20;

/// Where the boot code jumps to, on its stack, with the first [`entry::MAPPED_BYTES`] of physical
/// memory mapped where the kernel was linked and in the direct map.
extern "C" fn kernel_main(start_info: u64) -> ! {
    let mut report = Report::begin(Serial::open());
    let stopwatch = clock::Stopwatch::start();
    trap::load();
    pic::remap();
    pit::tick_at(TICKS_PER_SECOND);
    pic::unmask(pit::IRQ);
    x86_64::instructions::interrupts::enable();

    let loader = BootMapping;
    let info = must("start_info", StartInfo::read(&loader, start_info));
    let mut room = [0; 4096];
    let cmdline = must("command line", info.cmdline(&loader, &mut room));
    let options = must("command line", Options::parse(cmdline));
    WATCHDOG.set_limit(options.watchdog_seconds.saturating_mul(TICKS_PER_SECOND));
    let mut room = [MemoryMapEntry::default(); MAX_ENTRIES];
    let entries = must("memory map", info.memory_map(&loader, &mut room));
    let mut room = [MemoryMapEntry::default(); MAX_MODULES];
    let modules = must("modules", info.modules(&loader, &mut room));
    let map = LoaderMap { entries, modules };
    let (mut space, hotplug) = must("memory", map.start());
    let firmware = must("ACPI", acpi::Firmware::read(info.rsdp_addr(), &mut space));
    let clock = must("clock", stopwatch.calibrate());
    report.event(&Event::Boot {
        ms: clock.now_us() / 1000,
        boot_memory: map.ram_bytes(),
        cpus: firmware.cpus,
    });
    report.ok("boot");
    if options.exit == ExitWhen::Boot {
        exit::exit(report.finish())
    }

    WATCHDOG.enter(Step::Discovery);
    let mut buses = must("PCI", pci::Buses::open(firmware.ecam, &mut space));
    let Some((transport, irq)) = must("virtio-mem", device::find(&mut buses, &mut space)) else {
        give_up("there is no virtio-mem device")
    };
    WATCHDOG.enter(Step::Device);
    let device = must("virtio-mem", device::start(transport));
    report.event(&device::event(&device));
    let config = device.driver().config();
    trap::enable_bell(irq);
    let workload = Workload::new(&options, config.managed());
    let hooks = KernelHooks { space, workload, tables_written: Bytes::ZERO };
    let manager = Manager::new(hotplug, hooks, online_type(options.online), config.unit_frames());
    exit::exit(Session::new(report, &clock, &options, device, manager).run())
}

fn online_type(online: Online) -> OnlineType {
    match online {
        Online::Offline => OnlineType::Offline,
        Online::Online => OnlineType::Online,
        Online::Kernel => OnlineType::Kernel,
        Online::Movable => OnlineType::Movable,
    }
}

/// Nothing can go on without what failed here.
fn must<T, E: fmt::Display>(what: &str, result: Result<T, E>) -> T {
    result.unwrap_or_else(|error| give_up(format_args!("{what}: {error}")))
}

/// Ends the run with the reason and the step in which it arose.
fn give_up(reason: impl fmt::Display) -> ! {
    x86_64::instructions::interrupts::disable();
    exit::exit(bail_out(Serial::new(), format_args!("{}: {reason}", WATCHDOG.step())))
}

#[panic_handler]
fn panic(info: &core::panic::PanicInfo<'_>) -> ! {
    match info.location() {
        Some(location) => give_up(format_args!("panic at {location}: {}", info.message())),
        None => give_up(format_args!("panic: {}", info.message())),
    }
}
