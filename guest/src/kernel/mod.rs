//! Boots the kernel, carries out the run that the command line describes, and ends the machine.

mod acpi;
mod acpi_hotplug;
pub(crate) mod attached_device;
mod balloon;
pub(crate) mod boot_memory;
pub(crate) mod churn;
mod config_space;
mod descriptors;
mod device;
mod device_error;
mod dimms;
mod edu;
mod engine;
mod entropy;
pub(crate) mod fatal;
mod general_events;
mod hal;
mod heap;
mod hooks;
pub(crate) mod limits;
pub(crate) mod memory;
mod memory_view;
mod migratable_window;
pub(crate) mod moving_pages;
mod msix;
pub(crate) mod nmi_statistics;
mod nvdimm;
mod objects;
pub(crate) mod page_faults;
mod pci;
mod pinned_memory;
mod poison;
pub(crate) mod progress;
mod queue_memory;
mod quiesce;
mod session;
pub(crate) mod signal;
pub(crate) mod take_once;
mod this_cpu;
mod transport;
pub(crate) mod wakeup;
mod workload;
mod zone_watch;

use crate::arch::{self, Clock, Console, MessageTarget, NextKernel, Nmis, Stopwatch, Timers, exit};
use boot_memory::{BootMapping, LoaderMap, MAX_ENTRIES, MAX_MODULES};
use engine::Engine;
use fatal::{give_up, must};
use hooks::KernelMapping;
use hotmem::{Bytes, Contents, Pfn, PfnRange};

use hotmem_guest::cmdline::{self, ExitWhen, Options, StackOf};
use hotmem_guest::event::Event;
use hotmem_guest::mp_table;
use hotmem_guest::pvh::{Handover, MemoryMapEntry, StartInfo};
use hotmem_guest::report::Report;
use progress::{TICKS, start_ticking};
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
/// mapped the first [`arch::image::mapped`] part of physical memory at the kernel's link address and in
/// the direct map.
pub(crate) extern "C" fn kernel_main(start_info: u64) -> ! {
    let session = Session::open(boot(start_info));
    session.attach_devices();
    session.run();
    exit(session.finish())
}

/// Starts the engine and what else runs without devices. Ends the machine if the run is over then.
#[inline(never)]
fn boot(start_info: u64) -> SessionParameters {
    let mut report = Report::begin(Console::open());
    let stopwatch = Stopwatch::start();
    arch::start_first_cpu();

    let boot_mapping = BootMapping;
    let info = must("start_info", StartInfo::read(&boot_mapping, start_info));
    let cmdline = must("command line", info.cmdline(&boot_mapping, CMDLINE.take()));
    let (cmdline, next) = cmdline::split(cmdline);
    let options = &*OPTIONS.put(must("command line", Options::parse(cmdline)));
    must("stack overflow", arch::plan_overflow(options.overflow));
    // Some timers tick only when their interrupt controller is open.
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
    must("interrupts", arch::open_interrupts(engine.space()));
    let timers = Timers { ticks, pm_timer: firmware.pm_timer_port };
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
        exit(report.finish())
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
        exit(report.finish())
    }
    if options.memory_written_by_cpus != Bytes::ZERO {
        if !arch::paging::sets_dirty_bits() {
            give_up("moving pages: the CPU does not mark pages as written");
        }
        moving_pages::open(engine.space(), map.ram_end());
    }
    if options.churn {
        churn::start();
    }
    let nmis = options.nmis.then(|| must("NMIs", Nmis::start()));
    if let Some(bursts) = options.faults {
        let nodes = firmware.nodes.as_slice().iter().map(|(_, node)| node.0.saturating_add(1));
        page_faults::begin(bursts, nodes.max().unwrap_or(1), *clock);
    }
    let work = options.churn || options.memory_written_by_cpus != Bytes::ZERO;
    if work || options.faults.is_some() || options.overflow == Some(StackOf::OtherCpu) {
        let ids = firmware.cpus.start_ids();
        must("CPUs", arch::start_others(ids, clock, engine.space()));
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
        message_target: MessageTarget::this_cpu(),
        boot_memory,
        nmis,
        next_kernel: next,
    }
}

/// Runs a CPU other than the first one. It allocates and frees memory, as the options say.
pub(crate) fn run_other_cpu(number: usize) -> ! {
    if page_faults::is_planned() {
        page_faults::run(number)
    }
    churn::run(number)
}
