//! The kernel: from the loader's jump to the verdict.

mod acpi;
mod clock;
mod entry;
mod exit;
mod memory;
mod pci;
mod pic;
mod pit;
mod serial;
mod trap;
mod virtio;

use core::fmt;
use hotmem::Bytes;
use hotmem_guest::cmdline::{ExitWhen, Options};
use hotmem_guest::event::Event;
use hotmem_guest::pvh::{MemoryMapEntry, StartInfo};
use hotmem_guest::report::{Report, bail_out};
use hotmem_guest::watchdog::{Step, Watchdog};
use serial::Serial;

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

    let loader = memory::BootMapping;
    let info = must("start_info", StartInfo::read(&loader, start_info));
    let mut room = [0; 4096];
    let cmdline = must("command line", info.cmdline(&loader, &mut room));
    let options = must("command line", Options::parse(cmdline));
    WATCHDOG.set_limit(options.watchdog_seconds.saturating_mul(TICKS_PER_SECOND));
    let mut room = [MemoryMapEntry::default(); 128];
    let map = must("memory map", info.memory_map(&loader, &mut room));
    let mut room = [MemoryMapEntry::default(); 16];
    let modules = must("modules", info.modules(&loader, &mut room));
    let mut memory = must("memory map", memory::AddressSpace::new(map, modules));
    let firmware = must("ACPI", acpi::Firmware::read(info.rsdp_addr(), &mut memory));
    let clock = must("clock", stopwatch.calibrate());
    report.event(&Event::Boot {
        ms: clock.now_us() / 1000,
        boot_memory: ram_bytes(map),
        cpus: firmware.cpus,
    });
    report.ok("boot");
    if options.exit == ExitWhen::Boot {
        exit::exit(report.finish())
    }

    WATCHDOG.enter(Step::Discovery);
    let mut buses = must("PCI", pci::Buses::open(firmware.ecam, &mut memory));
    let found = must("virtio-mem", virtio::MemoryDevice::find(&mut buses, &mut memory));
    let Some(mut device) = found else { give_up("there is no virtio-mem device") };
    report.event(&must("virtio-mem", device.event()));
    trap::enable_bell(device.irq());
    WATCHDOG.enter(Step::Idle);
    loop {
        trap::wait();
        device.acknowledge_interrupt();
        trap::rearm_bell();
    }
}

fn ram_bytes(map: &[MemoryMapEntry]) -> Bytes {
    let ram = map.iter().filter(|entry| entry.kind == MemoryMapEntry::RAM);
    ram.fold(Bytes::ZERO, |sum, entry| sum + Bytes(entry.size))
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
