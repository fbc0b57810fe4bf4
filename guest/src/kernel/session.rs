//! Runs the kernel with devices: resizes memory as the devices request, and reports the results.

mod bad_memory;
mod check;
mod cxl;
mod dax;
mod devices;
mod dimms;
mod finish;
mod host;
mod late_memory;
mod resize;
mod scan;
mod touching;
mod work;

use super::acpi_hotplug::AcpiHotplug;
use super::attached_device::AttachedDevice;
use super::balloon::Balloon;
use super::command_port::CommandPort;
use super::cxl::Cxl;
use super::dax::DaxMemories;
use super::device::is_driven;
use super::dimms::Dimms;
use super::edu::Edu;
use super::engine::{Engine, online_type};
use super::entropy::Entropy;
use super::fatal::{give_up, must};
use super::firmware::{CxlFirmware, EcamArea};
use super::general_events::GeneralEvents;
use super::late_memory::LateMemory;
use super::memory::FRAMES;
use super::objects::Objects;
use super::page_faults::Bursts;
use super::pci::{Buses, MAX_PORTS};
use super::pinned_memory::PinnedRanges;
use super::progress::WATCHDOG;
use super::slot_region::SlotRegion;
use super::take_once::TakeOnce;
use super::wakeup;
use crate::arch::{Clock, Console, MessageTarget, NextKernel, interrupts};
use core::ops::Range;
use hotmem::{Bytes, Pfn, PfnRange};
use hotmem_guest::cmdline::{CheckedDevice, ExitWhen, Options, WorkAt};
use hotmem_guest::device_tree::PciLines;
use hotmem_guest::event::CxlEvent;
use hotmem_guest::late_memory::LateRanges;
use hotmem_guest::limits::MAX_DEVICES;
use hotmem_guest::nfit::PersistentRange;
use hotmem_guest::report::Report;
use hotmem_guest::virtio_mmio::MmioDevice;
use hotmem_guest::watchdog::Step;
use hotmem_virtio::balloon;
use hotmem_virtio::mem::Progress;
use touching::TouchRound;
use virtio_drivers::transport::pci::bus::DeviceFunctionInfo;

/// The session, and its large parts.
static DEVICES: TakeOnce<[Option<AttachedDevice>; MAX_DEVICES]> =
    TakeOnce::new([const { None }; MAX_DEVICES]);
static BALLOON: TakeOnce<Option<Balloon>> = TakeOnce::new(None);
static BURSTS: TakeOnce<Option<Bursts>> = TakeOnce::new(None);
static SESSION: TakeOnce<Option<Session>> = TakeOnce::new(None);

/// A run with devices.
pub(crate) struct Session {
    report: Report<Console>,
    clock: &'static Clock,
    options: &'static Options,
    /// The places for virtio devices in memory.
    mmio_devices: &'static [MmioDevice],
    buses: Buses,
    /// ACPI's general-purpose events, if there are any.
    events: Option<GeneralEvents>,
    acpi_hotplug: Option<AcpiHotplug>,
    dimms: &'static mut Option<Dimms>,
    /// The memory of the machine that the engine was not told of at boot, if there is any.
    late_memory: &'static mut Option<LateMemory>,
    /// What the firmware says about CXL.
    cxl_firmware: Option<CxlFirmware>,
    /// The CXL memory, if the options ask for it.
    cxl: Option<&'static mut Cxl>,
    /// The persistent memory, if commands may change it.
    persistent: Option<&'static [PersistentRange]>,
    /// The memory of devices that commands change.
    dax: &'static mut DaxMemories,
    /// Where commands come from, if the options say that they end the run.
    commands: Option<CommandPort>,
    devices: &'static mut [Option<AttachedDevice>; MAX_DEVICES],
    entropy: Option<Entropy>,
    pinned_ranges: Option<PinnedRanges>,
    /// The port of the slot of the device that writes to [`Session::pinned_ranges`].
    edu_port: Option<usize>,
    /// The balloon's new size, if the balloon has changed its size and [`Session::pinned_ranges`]
    /// was not checked since.
    unchecked_balloon_size: Option<Bytes>,
    balloon: &'static mut Option<Balloon>,
    /// The size of the balloon when it last reached the size that the host requested.
    balloon_size: Bytes,
    /// The number of sizes that the balloon has reached.
    inflations: u32,
    /// When the balloon's driver last had something to do.
    balloon_busy_us: u64,
    /// Where devices send messages; `None` if messages are not possible.
    message_target: Option<MessageTarget>,
    engine: &'static mut Engine,
    objects: Objects,
    /// The boot memory, until the workload begins to use it.
    unused_boot_memory: Option<PfnRange>,
    /// The frames below the end of the RAM at boot.
    boot_memory: PfnRange,
    touch_round: Option<TouchRound>,
    /// The bursts of other CPUs.
    bursts: &'static mut Option<Bursts>,
    /// The frame at which the check of touched memory continues; `None` if no check is running.
    /// When the check is complete, the memory is freed.
    verify_from: Option<Pfn>,
    touched_memory: Bytes,
    resizes: u32,
    /// The number of frames that held the engine's words at the last report.
    word_frames: u64,
    /// The kernel to start at the end.
    next_kernel: Option<NextKernel>,
}

/// The parameters of a run: addresses for finding devices, and values that the boot code has
/// prepared.
pub(crate) struct SessionParameters {
    pub(crate) report: Report<Console>,
    pub(crate) clock: &'static Clock,
    pub(crate) options: &'static Options,
    pub(crate) engine: &'static mut Engine,
    /// The memory-mapped configuration space of PCI.
    pub(crate) ecam: Option<EcamArea>,
    /// The addresses for BARs to which firmware has assigned no address.
    pub(crate) bar_window: Range<u32>,
    /// The interrupt lines of PCI, if firmware has not written them to the functions.
    pub(crate) pci_lines: Option<&'static PciLines>,
    /// ACPI's general-purpose events, if there are any.
    pub(crate) events: Option<GeneralEvents>,
    /// The registers of memory slots, if there are any.
    pub(crate) slots: Option<SlotRegion>,
    /// What the firmware says about CXL.
    pub(crate) cxl: Option<CxlFirmware>,
    /// The persistent memory, if commands may change it.
    pub(crate) persistent: Option<&'static [PersistentRange]>,
    /// The places for virtio devices in memory.
    pub(crate) mmio_devices: &'static [MmioDevice],
    /// The memory of the machine that the engine was not told of at boot.
    pub(crate) late_memory: LateRanges,
    /// Where devices send messages; `None` if messages are not possible.
    pub(crate) message_target: Option<MessageTarget>,
    /// The memory from frame 0 to the end of the RAM in the loader's map.
    pub(crate) boot_memory: PfnRange,
    /// The kernel to start at the end of a successful run.
    pub(crate) next_kernel: Option<NextKernel>,
}

impl Session {
    /// Opens a run without devices.
    #[inline(never)]
    pub(crate) fn open(parameters: SessionParameters) -> &'static mut Self {
        WATCHDOG.enter(Step::Discovery);
        let SessionParameters {
            report, clock, options, engine, mmio_devices, message_target, ..
        } = parameters;
        let (ecam, window) = (parameters.ecam, parameters.bar_window);
        let buses = Buses::open(ecam, window, parameters.pci_lines, engine.space());
        let buses = must("PCI", buses);
        let dimms = Dimms::find(
            parameters.slots,
            parameters.events,
            online_type(options.online),
            engine.space(),
        );
        SESSION.put(Session {
            report,
            clock,
            options,
            mmio_devices,
            events: parameters.events,
            acpi_hotplug: None,
            late_memory: LateMemory::begin(parameters.late_memory, online_type(options.online)),
            dimms,
            buses,
            cxl_firmware: parameters.cxl,
            cxl: None,
            persistent: parameters.persistent,
            dax: DaxMemories::take(),
            commands: (options.exit == ExitWhen::Command).then(CommandPort::open).flatten(),
            devices: DEVICES.take(),
            entropy: None,
            pinned_ranges: None,
            edu_port: None,
            unchecked_balloon_size: None,
            balloon: BALLOON.take(),
            balloon_size: Bytes::ZERO,
            inflations: 0,
            balloon_busy_us: 0,
            message_target,
            engine,
            objects: Objects::new(options),
            boot_memory: parameters.boot_memory,
            unused_boot_memory: (options.work != Bytes::ZERO).then_some(parameters.boot_memory),
            touch_round: None,
            bursts: BURSTS.take(),
            verify_from: None,
            touched_memory: Bytes::ZERO,
            resizes: 0,
            word_frames: FRAMES.counts().words,
            next_kernel: parameters.next_kernel,
        })
    }

    /// Returns the device that this run checks, if it is a check.
    pub(crate) fn checked_device(&self) -> Option<CheckedDevice> {
        self.options.check
    }

    /// Finds the devices and starts them.
    #[inline(never)]
    pub(crate) fn attach_devices(&mut self) {
        let options = self.options;
        let is_wanted = |info: &DeviceFunctionInfo| {
            is_driven(info)
                || (options.cxl.is_some() && Cxl::is_at(info))
                || (options.dma != Bytes::ZERO && Edu::is_at(info))
        };
        let found = must("PCI", self.buses.find(self.engine.space(), is_wanted));
        self.acpi_hotplug = AcpiHotplug::find(self.events, &self.buses);
        *self.bursts = options.faults.map(Bursts::new);
        if let Some(firmware) = self.cxl_firmware {
            self.attach_cxl(firmware, &found);
        }
        if let Some(ranges) = self.persistent {
            self.attach_persistent_memory(ranges);
        }
        for (function, port) in found.iter() {
            self.attach_pci(function, port);
        }
        for place in self.mmio_devices {
            self.attach_mmio(*place);
        }
        let has_other_devices = self.entropy.is_some() || self.balloon.is_some();
        let can_add_devices = self.buses.has_ports()
            || self.dimms.is_some()
            || self.late_memory.is_some()
            || self.commands.is_some();
        if self.devices[0].is_none() && !has_other_devices && !can_add_devices {
            give_up("there is no virtio-mem device");
        }
        if options.dma != Bytes::ZERO && self.pinned_ranges.is_none() {
            give_up("there is no edu device");
        }
        self.check_balloon_is_usable();
        if options.work_at == WorkAt::Boot {
            self.begin_work();
        }
        if self.commands.is_some() {
            self.report.cxl(CxlEvent::TakesCommands);
        }
    }

    /// Serves the devices until the run is over.
    #[inline(never)]
    pub(crate) fn run(&mut self) {
        loop {
            WATCHDOG.enter(Step::Resize);
            self.answer_interrupts();
            self.quarantine_bad_frames();
            let mut has_more_work = false;
            for number in 0..MAX_DEVICES {
                has_more_work |= self.step_device(number) == Some(Progress::Working);
                self.report_status(number);
            }
            has_more_work |= self.step_dimms();
            has_more_work |= self.step_cxl();
            has_more_work |= self.step_commands();
            let balloon = self.step_balloon();
            has_more_work |= balloon == balloon::Progress::Working;
            has_more_work |= self.step_late_memory();
            self.step_bursts();
            if has_more_work || self.touch_some() || self.verify_some() {
                continue;
            }
            self.take_entropy();
            self.check_pinned();
            if self.is_over() {
                return;
            }
            WATCHDOG.enter(Step::Idle);
            if !self.must_poll_soon(balloon) {
                interrupts::wait_for_interrupt(wakeup::take_memory_freed);
            }
            WATCHDOG.enter(Step::Discovery);
            (0..MAX_PORTS).for_each(|port| self.watch_port(port));
            self.watch_acpi();
            self.release_objects();
        }
    }

    fn devices(&mut self) -> impl Iterator<Item = &mut AttachedDevice> {
        self.devices.iter_mut().flatten()
    }

    /// Reports the answer of the entropy source, and stops it.
    #[inline(never)]
    fn take_entropy(&mut self) {
        let Some(mut entropy) = self.entropy.take() else { return };
        match must("virtio-rng", entropy.answer(self.clock.now_us())) {
            None => self.entropy = Some(entropy),
            Some(event) => {
                entropy.stop();
                self.report.event(&event);
                self.report.ok("entropy");
            }
        }
    }
}
