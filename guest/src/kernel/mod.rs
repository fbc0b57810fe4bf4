//! Boots the kernel, carries out the run that the command line describes, and ends the machine.

mod acpi;
mod acpi_hotplug;
mod attached_device;
mod balloon;
mod boot_memory;
mod churn;
mod command_port;
mod config_space;
mod conformance;
mod contents;
mod cxl;
mod dax;
mod descriptors;
mod device;
mod device_error;
mod device_memory;
mod dimms;
mod edu;
mod engine;
mod entropy;
mod fatal;
mod firmware;
mod fw_cfg;
mod general_events;
mod hal;
mod heap;
mod hooks;
mod late_memory;
mod loader;
mod memory;
mod memory_view;
mod migratable_window;
mod moving_pages;
mod msix;
mod nmi;
mod nvdimm;
mod objects;
mod page_faults;
mod pci;
mod pinned_memory;
mod progress;
mod queue_memory;
mod quiesce;
mod session;
mod slot_events;
mod slot_region;
mod slot_registers;
mod stacks;
mod take_once;
mod this_cpu;
mod transport;
mod wakeup;
mod workload;
mod zone_watch;

use crate::arch::{self, Clock, Console, Handlers, MessageTarget, NextKernel, Stopwatch, exit};
use boot_memory::BootMapping;
use core::fmt;
use engine::Engine;
use fatal::{give_up, must};
use firmware::Firmware;
use hooks::KernelMapping;
use hotmem::{Bytes, Contents, Pfn, PfnRange};
use hotmem_directmap::Caching;
use hotmem_guest::cmdline::{self, ExitWhen, Options, StackOf, ZeroMarks};
use hotmem_guest::event::Event;
use hotmem_guest::mp_table;
use hotmem_guest::pvh::Handover;
use hotmem_guest::report::Report;
use hotmem_guest::virtio_mmio;
use loader::{Description, Loaded};
use progress::{TICKS, WATCHDOG, start_ticking};
use session::{Session, SessionParameters};
use slot_region::SlotRegion;
use stacks::Stacks;
use take_once::TakeOnce;

static OPTIONS: TakeOnce<Option<Options>> = TakeOnce::new(None);
static CLOCK: TakeOnce<Option<Clock>> = TakeOnce::new(None);
static NEXT_CMDLINE: TakeOnce<[u8; 4096]> = TakeOnce::new([0; 4096]);

/// What the kernel does when an exception or an interrupt occurs.
static HANDLERS: Handlers = Handlers {
    give_up: |reason: &dyn fmt::Display| give_up(reason),
    tick,
    page_is_absent: moving_pages::wait_for_page,
    run_other_cpu,
};

/// Runs the kernel. The boot code of the architecture calls this function on the boot stack, with the
/// address of what the loader has passed. It has mapped [`arch::image::mapped`] in the direct map, and
/// the kernel's image at its link address.
#[unsafe(no_mangle)]
extern "C" fn kernel_main(boot_info: u64) -> ! {
    let session = Session::open(boot(boot_info));
    if let Some(kind) = session.checked_device() {
        exit(session.check_device(kind))
    }
    session.attach_devices();
    session.run();
    exit(session.finish())
}

/// Starts the engine and what else runs without devices. Ends the machine if the run is over then.
#[inline(never)]
fn boot(boot_info: u64) -> SessionParameters {
    let mut report = Report::begin(Console::open(&loader::early_devices(boot_info)));
    let stopwatch = Stopwatch::start();
    arch::start_first_cpu(&HANDLERS);

    let Loaded { command_line, map, description } = must("loader", Loaded::read(boot_info));
    let (own, next) = cmdline::split(command_line);
    let options = &*OPTIONS.put(must("command line", Options::parse(own)));
    arch::plan_overflow(options.overflow);
    let (map, late_memory) = must("late memory", map.withhold(options.late));
    // Some timers tick only when their interrupt controller is open.
    let ticks = start_ticking(TICKS, options).ok().map(|()| TICKS);
    let (mut space, table_frames) = must("memory", map.map());
    let firmware = Firmware::unknown();
    let mut next_kernel = None;
    match description {
        Description::Acpi { rsdp } => {
            // Without a module the words after `--` are for no kernel, but for an init program.
            next_kernel = next.zip(map.in_use.first()).map(|(cmdline, module)| {
                if matches!(options.exit, ExitWhen::Boot | ExitWhen::Nvdimm) {
                    give_up("next kernel: this run ends before it looks for devices");
                }
                let (memory_map, modules) = (map.entries, map.in_use);
                let with_devices = virtio_mmio::pass_on_devices(own, cmdline, NEXT_CMDLINE.take());
                let cmdline =
                    must("next kernel", with_devices.ok_or("the command line is too long"));
                let handover = Handover { cmdline, rsdp_addr: rsdp, memory_map, modules };
                must("next kernel", NextKernel::prepare(module, map.ram_ranges(), handover))
            });
            must("ACPI", firmware.add_acpi(rsdp, &mut space, map.ram_ranges()));
            firmware.cpus.add_if_unlisted(mp_table::apic_ids(&BootMapping));
        }
        Description::Tree(tree) => {
            firmware.add_tree(tree);
            firmware.slots = SlotRegion::of_fw_cfg(tree.fw_cfg, &mut space);
        }
    }
    let tree = match description {
        Description::Acpi { .. } => None,
        Description::Tree(tree) => Some(tree),
    };
    let mapping = KernelMapping { space, bytes_described: Bytes::ZERO, has_descriptors: false };
    let hotplug = must("memory", map.start(mapping, table_frames, firmware));
    let engine = Engine::begin(hotplug, options);
    let map_registers =
        |phys_addr, len| engine.space().map_bytes(phys_addr, len, Caching::Uncached);
    let opened = arch::open_interrupts(tree, map_registers, memory::alloc_order);
    must("interrupts", opened);
    let calibrated = stopwatch.calibrate(ticks, firmware.pm_timer_port);
    let clock = &*CLOCK.put(must("clock", calibrated));
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
    if options.zero != ZeroMarks::Off {
        // SAFETY: the operator has said by this option that the host is trusted.
        unsafe { memory::FRAMES.keep_zero_marks() };
    }
    if options.descriptors {
        must("descriptors of RAM", engine.describe_boot_memory());
    }
    let mut persistent = None;
    if let Some(namespace) = options.nvdimm {
        let ranges = must("ACPI", firmware.persistent.as_ref()).as_slice();
        if namespace.is_reconfigurable() && options.exit == ExitWhen::Command {
            persistent = Some(ranges);
        } else {
            nvdimm::run(namespace, ranges, (clock, options), engine, &mut report);
        }
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
    if options.nmis {
        must("NMIs", arch::handle_nmis(nmi::handle));
    }
    if let Some(bursts) = options.faults {
        let nodes = firmware.nodes.iter().map(|(_, node)| node.0.saturating_add(1));
        page_faults::begin(bursts, nodes.max().unwrap_or(1), *clock);
    }
    let work = options.churn || options.memory_written_by_cpus != Bytes::ZERO;
    if work || options.faults.is_some() || options.overflow == Some(StackOf::OtherCpu) {
        let ids = firmware.cpus.start_ids();
        let mut stacks = Stacks::open(engine.space());
        must("CPUs", arch::start_others(ids, clock, |cpu| stacks.add(cpu)));
    }
    must("command line", virtio_mmio::add_devices(own, &mut firmware.mmio_devices));
    let firmware = &*firmware;
    SessionParameters {
        report,
        clock,
        options,
        engine,
        ecam: firmware.ecam,
        bar_window: firmware.bar_window.clone(),
        pci_lines: firmware.pci_lines,
        events: firmware.events,
        slots: *must("memory slots", firmware.slots.as_ref()),
        mmio_devices: &firmware.mmio_devices,
        late_memory,
        message_target: MessageTarget::this_cpu(),
        boot_memory,
        next_kernel,
        cxl: firmware.cxl(),
        persistent,
    }
}

/// Handles a tick of the timer.
fn tick() {
    if WATCHDOG.tick().is_some() {
        give_up("watchdog: no progress");
    }
}

/// Runs a CPU other than the first one. It allocates and frees memory, as the options say.
fn run_other_cpu(number: usize) -> ! {
    if page_faults::is_planned() {
        page_faults::run(number)
    }
    churn::run(number)
}
