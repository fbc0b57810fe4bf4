//! Starts the engine with the machine's memory, and what else runs without devices.

use super::boot_memory::{BootMapping, LoaderMap};
use super::engine::Engine;
use super::fatal::{give_up, must};
use super::firmware::Firmware;
use super::hooks::KernelMapping;
use super::loader::{self, Description, Loaded};
use super::progress::{TICKS, WATCHDOG, start_ticking};
use super::session::SessionParameters;
use super::slot_region::SlotRegion;
use super::stacks::Stacks;
use super::take_once::TakeOnce;
use super::{churn, heap, memory, moving_pages, nmi, nvdimm, page_faults};
use crate::arch::{self, Clock, Console, Handlers, MessageTarget, NextKernel, Stopwatch, exit};
use core::fmt;
use hotmem::{Bytes, Contents, Pfn, PfnRange};
use hotmem_directmap::Caching;
use hotmem_guest::cmdline::{self, ExitWhen, Options, StackOf, ZeroMarks};
use hotmem_guest::event::Event;
use hotmem_guest::mp_table;
use hotmem_guest::nfit::{NfitError, PersistentRange, PersistentRanges};
use hotmem_guest::pvh::Handover;
use hotmem_guest::report::Report;
use hotmem_guest::virtio_mmio;

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

/// Boots the kernel. Ends the machine if the run is over then.
#[inline(never)]
pub(super) fn boot(boot_info: u64) -> SessionParameters {
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
    let tree = match description {
        Description::Acpi { rsdp } => {
            next_kernel = next.and_then(|next| prepare_next_kernel(own, next, &map, rsdp, options));
            must("ACPI", firmware.add_acpi(rsdp, &mut space, map.ram_ranges()));
            firmware.cpus.add_if_unlisted(mp_table::apic_ids(&BootMapping));
            None
        }
        Description::Tree(tree) => {
            firmware.add_tree(tree);
            firmware.slots = SlotRegion::of_fw_cfg(tree.fw_cfg, &mut space);
            Some(tree)
        }
    };
    let mapping = KernelMapping { space, bytes_described: Bytes::ZERO, has_descriptors: false };
    let hotplug = must("memory", map.start(mapping, table_frames, firmware));
    let engine = Engine::begin(hotplug, options);
    let map_registers =
        |phys_addr, len| engine.space().map_bytes(phys_addr, len, Caching::Uncached);
    must("interrupts", arch::open_interrupts(tree, map_registers, memory::alloc_order));
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

    let boot_memory = PfnRange::new(Pfn::ZERO, map.ram_end()).unwrap_or(PfnRange::EMPTY);
    prepare_memory(boot_memory, engine, options);
    let persistent =
        open_persistent_memory(&firmware.persistent, clock, engine, &mut report, options);
    if options.exit == ExitWhen::Nvdimm {
        finish_without_devices(report)
    }
    start_work(boot_memory.end(), firmware, clock, engine, options);
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

/// Prepares the kernel that starts at the end of the run, if the loader has passed a module. `next` is
/// its command line. Without a module these words are for no kernel, but for an init program.
fn prepare_next_kernel(
    own: &[u8],
    next: &[u8],
    map: &LoaderMap<'static>,
    rsdp_addr: Option<u64>,
    options: &Options,
) -> Option<NextKernel> {
    let module = map.in_use.first()?;
    if matches!(options.exit, ExitWhen::Boot | ExitWhen::Nvdimm) {
        give_up("next kernel: this run ends before it looks for devices");
    }
    let with_devices = virtio_mmio::pass_on_devices(own, next, NEXT_CMDLINE.take());
    let cmdline = must("next kernel", with_devices.ok_or("the command line is too long"));
    let handover = Handover { cmdline, rsdp_addr, memory_map: map.entries, modules: map.in_use };
    Some(must("next kernel", NextKernel::prepare(module, map.ram_ranges(), handover)))
}

/// Gives boot memory what the options ask for: a heap, contents of free memory, marks of memory that is
/// zero, descriptors.
fn prepare_memory(boot_memory: PfnRange, engine: &mut Engine, options: &Options) {
    if options.heap != Bytes::ZERO {
        heap::open(engine.space(), boot_memory.end());
    }
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
}

/// Runs with persistent memory, if the options say so. If commands may change it during the session
/// instead, returns its ranges.
fn open_persistent_memory(
    found: &'static Result<PersistentRanges, NfitError>,
    clock: &Clock,
    engine: &mut Engine,
    report: &mut Report<Console>,
    options: &Options,
) -> Option<&'static [PersistentRange]> {
    let namespace = options.nvdimm?;
    let ranges = must("ACPI", found.as_ref()).as_slice();
    if namespace.is_reconfigurable() && options.exit == ExitWhen::Command {
        return Some(ranges);
    }
    nvdimm::run(namespace, ranges, (clock, options), engine, report);
    None
}

/// Ends a run that looks for no devices.
fn finish_without_devices(mut report: Report<Console>) -> ! {
    // SAFETY: no other CPU has been started, so no other CPU uses `FRAMES`.
    match unsafe { memory::FRAMES.validate() } {
        Ok(_) => report.ok("validate"),
        Err(fault) => report.not_ok(format_args!("validate: {fault}")),
    }
    exit(report.finish())
}

/// Starts the other CPUs, if the options give them work. Page tables lie below `tables_below`.
fn start_work(
    tables_below: Pfn,
    firmware: &Firmware,
    clock: &'static Clock,
    engine: &mut Engine,
    options: &Options,
) {
    let writes_memory = options.memory_written_by_cpus != Bytes::ZERO;
    if writes_memory {
        if !arch::paging::sets_dirty_bits() {
            give_up("moving pages: the CPU does not mark pages as written");
        }
        moving_pages::open(engine.space(), tables_below);
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
    let has_work = options.churn || writes_memory || options.faults.is_some();
    if has_work || options.overflow == Some(StackOf::OtherCpu) {
        let ids = firmware.cpus.start_ids();
        let mut stacks = Stacks::open(engine.space());
        must("CPUs", arch::start_others(ids, clock, |cpu| stacks.add(cpu)));
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
