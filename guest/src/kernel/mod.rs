//! Boots the kernel, carries out the run that the command line describes, and ends the machine.

mod acpi;
mod acpi_hotplug;
mod attached_device;
mod balloon;
mod boot_memory;
mod churn;
mod clock;
mod config_space;
mod cpu32;
mod descriptors;
mod device;
mod device_error;
mod dimms;
mod edu;
mod engine;
mod entropy;
mod entry;
mod exit;
mod fatal;
mod flush;
mod general_events;
mod hal;
mod heap;
mod hooks;
mod image;
mod lapic;
mod limits;
mod machine_check;
mod memory;
mod memory_view;
mod migratable_window;
mod moving_pages;
mod msix;
mod next_kernel;
mod nmi;
mod nvdimm;
mod objects;
mod page_faults;
mod pci;
mod pic;
mod pinned_memory;
mod pit;
mod poison;
mod progress;
mod queue_memory;
mod quiesce;
mod serial;
mod session;
mod signal;
mod smp;
mod stacks;
mod take_once;
mod task_state;
mod this_cpu;
mod transport;
mod trap;
mod vectors;
mod wakeup;
mod workload;
mod zone_watch;

use boot_memory::{BootMapping, LoaderMap, MAX_ENTRIES, MAX_MODULES};
use clock::{Clock, Stopwatch, Timers};
use engine::Engine;
use fatal::{give_up, must};
use hooks::KernelMapping;
use hotmem::{Bytes, Contents, Pfn, PfnRange};
use hotmem_directmap::Caching;
use hotmem_guest::cmdline::{self, ExitWhen, Options, StackOf};
use hotmem_guest::event::Event;
use hotmem_guest::mp_table;
use hotmem_guest::pvh::{Handover, MemoryMapEntry, StartInfo};
use hotmem_guest::report::Report;
use lapic::LocalApic;
use next_kernel::NextKernel;
use progress::{TICKS, start_ticking};
use serial::Serial;
use session::{Session, SessionParameters};
use take_once::TakeOnce;

/// The command line, and the loader's memory map and modules.
static CMDLINE: TakeOnce<[u8; 4096]> = TakeOnce::new([0; 4096]);
static MEMORY_MAP: TakeOnce<[MemoryMapEntry; MAX_ENTRIES]> =
    TakeOnce::new([MemoryMapEntry::EMPTY; MAX_ENTRIES]);
static MODULES: TakeOnce<[MemoryMapEntry; MAX_MODULES]> =
    TakeOnce::new([MemoryMapEntry::EMPTY; MAX_MODULES]);

static OPTIONS: TakeOnce<Option<Options>> = TakeOnce::new(None);
static CLOCK: TakeOnce<Option<Clock>> = TakeOnce::new(None);

/// Runs the kernel in 64-bit mode. The boot code calls this function on the boot stack. It has
/// mapped the first [`image::MAPPED_BYTES`] of physical memory at the kernel's link address and in
/// the direct map.
extern "C" fn kernel_main(start_info: u64) -> ! {
    let session = Session::open(boot(start_info));
    session.attach_devices();
    session.run();
    exit::exit(session.finish())
}

/// Starts the engine and what else runs without devices. Ends the machine if the run is over then.
#[inline(never)]
fn boot(start_info: u64) -> SessionParameters {
    let mut report = Report::begin(Serial::open());
    let stopwatch = Stopwatch::start();
    this_cpu::set_number(0);
    trap::load();
    machine_check::enable();
    pic::remap();
    pic::unmask(pit::IRQ);
    x86_64::instructions::interrupts::enable();

    let boot_mapping = BootMapping;
    let info = must("start_info", StartInfo::read(&boot_mapping, start_info));
    let cmdline = must("command line", info.cmdline(&boot_mapping, CMDLINE.take()));
    let (cmdline, next) = cmdline::split(cmdline);
    let options = &*OPTIONS.put(must("command line", Options::parse(cmdline)));
    task_state::plan_overflow(options.overflow);
    // Without an 8254 the ticks begin when the local APIC is found.
    let ticks = start_ticking(TICKS, options).ok().map(|()| TICKS);
    let entries = must("memory map", info.memory_map(&boot_mapping, MEMORY_MAP.take()));
    let modules = must("modules", info.modules(&boot_mapping, MODULES.take()));
    let map = LoaderMap { entries, modules };
    let (mut space, table_frames) = must("memory", map.map());
    // Without a module the words after `--` are for no kernel, but for an init program.
    let next = next.zip(modules.first()).map(|(cmdline, module)| {
        if matches!(options.exit, ExitWhen::Boot | ExitWhen::Nvdimm) {
            give_up("next kernel: this run ends before it looks for devices");
        }
        let rsdp_addr = info.rsdp_addr();
        let handover = Handover { cmdline, rsdp_addr, memory_map: entries, modules };
        must("next kernel", NextKernel::prepare(&map, module, handover))
    });
    let firmware = acpi::Firmware::read(info.rsdp_addr(), &mut space, map.ram_ranges());
    let firmware = must("ACPI", firmware);
    firmware.cpus.add_if_unlisted(mp_table::apic_ids(&boot_mapping));
    let mapping = KernelMapping { space, bytes_described: Bytes::ZERO, has_descriptors: false };
    let hotplug = must("memory", map.start(mapping, table_frames, firmware));
    let engine = Engine::begin(hotplug, options);
    let space = engine.space();
    let registers = |phys_addr, len| space.map_bytes(phys_addr, len, Caching::Uncached);
    let apic = must("local APIC", LocalApic::open(registers));
    if let Some(apic) = apic {
        apic.pass_on_pic_interrupts_and_nmis();
    }
    let timers = Timers { ticks, pm_timer: firmware.pm_timer_port, apic };
    let clock = &*CLOCK.put(must("clock", stopwatch.calibrate(timers)));
    if ticks.is_none() {
        must("timer", start_ticking(TICKS, options));
    }
    report.event(&Event::Boot {
        ms: clock.now_us() / 1000,
        boot_memory: map.ram_bytes(),
        cpus: firmware.cpus.count,
        hot_pluggable: firmware.hot_pluggable,
    });
    report.ok("boot");
    if options.exit == ExitWhen::Boot {
        exit::exit(report.finish())
    }

    if options.heap != Bytes::ZERO {
        heap::open(engine.space(), map.ram_end());
    }
    let boot_memory = PfnRange::new(Pfn::ZERO, map.ram_end()).unwrap_or(PfnRange::EMPTY);
    if let Some(word) = options.poison {
        must("poison", memory::FRAMES.set_contents(Contents::Filled(word)));
        engine.hooks.workload.fill_free(boot_memory);
    }
    if options.descriptors {
        must("descriptors of RAM", engine.describe_boot_memory());
    }
    if let Some(namespace) = options.nvdimm {
        let persistent = must("ACPI", firmware.persistent.as_ref());
        nvdimm::run(namespace, persistent.as_slice(), (clock, options), engine, &mut report);
    }
    if options.exit == ExitWhen::Nvdimm {
        // SAFETY: no other CPU has been started, so no other CPU uses `FRAMES`.
        match unsafe { memory::FRAMES.validate() } {
            Ok(_) => report.ok("validate"),
            Err(fault) => report.not_ok(format_args!("validate: {fault}")),
        }
        exit::exit(report.finish())
    }
    if options.memory_written_by_cpus != Bytes::ZERO {
        moving_pages::open(engine.space(), map.ram_end());
    }
    if options.churn {
        churn::start();
    }
    if options.nmis {
        nmi::start();
    }
    if let Some(bursts) = options.faults {
        let nodes = firmware.nodes.as_slice().iter().map(|(_, node)| node.0.saturating_add(1));
        page_faults::begin(bursts, nodes.max().unwrap_or(1), *clock);
    }
    let work = options.churn || options.memory_written_by_cpus != Bytes::ZERO;
    if work || options.faults.is_some() || options.overflow == Some(StackOf::OtherCpu) {
        let apic = apic.unwrap_or_else(|| give_up("there is no local APIC to start CPUs by"));
        let space = engine.space();
        must("CPUs", smp::start_others(apic, firmware.cpus.apic_ids(), clock, space));
    }
    SessionParameters {
        report,
        clock,
        options,
        engine,
        ecam: firmware.ecam,
        events: firmware.events,
        slots: *must("memory slots", firmware.slots.as_ref()),
        cmdline,
        cpu: apic.and_then(LocalApic::message_id),
        boot_memory,
        next_kernel: next,
    }
}
