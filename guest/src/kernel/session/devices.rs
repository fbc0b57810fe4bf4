//! Attaches devices, handles their interrupts, and detaches them.

use super::Session;
use crate::arch::{LAYOUT, MESSAGES, Message, interrupts};
use crate::kernel::acpi_hotplug::AcpiHotplug;
use crate::kernel::attached_device::{AttachedDevice, InterruptSource};
use crate::kernel::balloon::Balloon;
use crate::kernel::command_port::CommandPort;
use crate::kernel::cxl::Cxl;
use crate::kernel::device::{is_driven, is_virtio_mem};
use crate::kernel::dimms::Dimms;
use crate::kernel::edu::Edu;
use crate::kernel::entropy::Entropy;
use crate::kernel::fatal::{give_up, must};
use crate::kernel::pci::MAX_PORTS;
use crate::kernel::pinned_memory::PinnedRanges;
use crate::kernel::progress::{TICKS_WITHOUT_IRQ, WATCHDOG, start_ticking};
use crate::kernel::transport::ConnectedDevice;
use hotmem_guest::event::Event;
use hotmem_guest::limits::MAX_DEVICES;
use hotmem_guest::slot::Action;
use hotmem_guest::virtio_mmio::MmioDevice;
use hotmem_guest::watchdog::Step;
use virtio_drivers::transport::pci::bus::{DeviceFunction, DeviceFunctionInfo};
use virtio_drivers::transport::pci::virtio_device_type;
use virtio_drivers::transport::{DeviceType, Transport};

/// The messages of devices other than virtio-mem devices.
const ENTROPY: Message = 16;
const BALLOON: Message = 17;
const _: () = assert!(MAX_DEVICES <= ENTROPY as usize && BALLOON < MESSAGES);

impl Session {
    /// Records which devices have interrupted, and unmasks their lines.
    pub(super) fn answer_interrupts(&mut self) {
        let messages = interrupts::take_messages();
        for (number, attached) in self.devices.iter_mut().enumerate() {
            if let Some(attached) = attached {
                attached.interrupt.is_pending |= messages >> number & 1 != 0;
            }
        }
        if let Some(entropy) = &mut self.entropy
            && messages >> ENTROPY & 1 != 0
        {
            entropy.message_arrived();
        }
        // Acknowledge the interrupts of all devices, because devices may share a line.
        interrupts::answer_lines(|| {
            let entropy = self.entropy.as_mut().is_some_and(Entropy::ack_interrupt);
            let balloon = self.balloon.as_mut().is_some_and(Balloon::ack_interrupt);
            let dimms = self.dimms.as_mut().is_some_and(Dimms::ack_interrupt);
            let commands = self.commands.as_mut().is_some_and(CommandPort::ack_interrupt);
            let others = entropy | balloon | dimms | commands;
            self.devices().fold(others, |any, attached| attached.ack_interrupt() | any)
        });
    }

    /// Attaches a PCI device whose registers are mapped.
    pub(super) fn attach_pci(&mut self, function: DeviceFunction, port: Option<usize>) {
        WATCHDOG.enter(Step::Device);
        let Some(info) = self.buses.info(function) else { return };
        if Cxl::is_at(&info) {
            return;
        }
        if Edu::is_at(&info) {
            return self.attach_edu(function, port);
        }
        let message = match virtio_device_type(&info) {
            Some(DeviceType::Memory) => {
                Message::try_from(self.free_device_number()).unwrap_or(ENTROPY)
            }
            Some(Balloon::DEVICE_TYPE) => BALLOON,
            _ => ENTROPY,
        };
        let message = self.message_target.map(|target| (message, target));
        let allowed = self.options.interrupts;
        let connected = ConnectedDevice::on_pci(&mut self.buses, function, allowed, message);
        self.attach(must("virtio", connected), port);
    }

    fn attach_edu(&mut self, function: DeviceFunction, port: Option<usize>) {
        let Some(edu) = Edu::open(&mut self.buses, function) else {
            give_up("edu: its registers cannot be mapped")
        };
        let (frames, hotplug) = (self.options.dma.frames(), &mut self.engine.hotplug);
        let pinned = must("edu", PinnedRanges::begin(edu, frames, hotplug, self.clock));
        self.report.event(&must("edu", pinned.event()));
        (self.pinned_ranges, self.edu_port) = (Some(pinned), port);
    }

    /// Attaches the MMIO device at `place`, if there is one.
    pub(super) fn attach_mmio(&mut self, place: MmioDevice) {
        WATCHDOG.enter(Step::Device);
        let space = self.engine.space();
        let connected = ConnectedDevice::on_mmio(place, self.options.interrupts, space);
        if let Some(connected) = must("virtio-mmio", connected) {
            self.attach(connected, None);
        }
    }

    /// Attaches a device of any type that the kernel drives.
    fn attach(&mut self, connected: ConnectedDevice, port: Option<usize>) {
        let interrupt_mode = connected.interrupt_mode;
        match connected.transport.device_type() {
            DeviceType::Memory => self.attach_memory(connected, port),
            Entropy::DEVICE_TYPE if self.entropy.is_none() => {
                let asked = Entropy::ask(connected, port, self.clock.now_us());
                self.entropy = Some(must("virtio-rng", asked));
            }
            Balloon::DEVICE_TYPE if self.balloon.is_none() => self.attach_balloon(connected, port),
            _ => return,
        }
        if !interrupt_mode.enable() {
            must("timer", start_ticking(TICKS_WITHOUT_IRQ, self.options));
        }
    }

    #[inline(never)]
    fn attach_balloon(&mut self, connected: ConnectedDevice, port: Option<usize>) {
        let memory = &mut self.engine.hooks.balloon;
        let started = Balloon::start(connected, port, self.options, self.balloon, memory);
        self.report.event(&must("virtio-balloon", started).event());
    }

    #[inline(never)]
    fn attach_memory(&mut self, connected: ConnectedDevice, port: Option<usize>) {
        let number = self.free_device_number();
        let ConnectedDevice { transport, interrupt_mode } = connected;
        let interrupt = InterruptSource {
            transport: transport.kind(),
            mode: interrupt_mode,
            is_pending: false,
        };
        let now_us = self.clock.now_us();
        let place = &mut self.devices[number];
        let started =
            AttachedDevice::start(place, transport, interrupt, port, self.options, now_us);
        let attached = must("virtio-mem", started);
        self.report.event(&attached.event(number));
        let region = attached.region();
        if region.end().phys_addr() > LAYOUT.direct_map.bytes().0 {
            give_up(format_args!("virtio-mem: {region} lies beyond the direct map"));
        }
        self.engine.hooks.workload.add_region(number, region);
    }

    /// Returns the first free number of a virtio-mem device.
    fn free_device_number(&self) -> usize {
        let number = self.devices.iter().position(Option::is_none);
        number
            .unwrap_or_else(|| give_up(format_args!("virtio-mem: more than {MAX_DEVICES} devices")))
    }

    /// Handles events of a hot-plug slot.
    #[inline(never)]
    pub(super) fn watch_port(&mut self, port: usize) {
        match self.buses.watch(port) {
            Action::Nothing => {}
            Action::Examine => self.examine_slot(port, is_virtio_mem),
            Action::Release => {
                if self.detach(port) {
                    self.buses.power_off(port);
                }
            }
            // The device was removed without a request, so the kernel can neither reset the device
            // nor read its memory.
            Action::Forget => {
                if self.devices().any(|attached| attached.port == Some(port)) {
                    give_up(format_args!(
                        "virtio-mem: the device in slot {port} was removed without a request"
                    ));
                }
            }
        }
    }

    /// Handles hot-plug events of ACPI.
    #[inline(never)]
    pub(super) fn watch_acpi(&mut self) {
        let Some(mut hotplug) = self.acpi_hotplug.take() else { return };
        for change in hotplug.changes() {
            if change.has_appeared {
                let is_new = hotplug.find_new_ports(change.bus, &self.buses);
                (0..MAX_PORTS)
                    .filter(|&port| is_new[port])
                    .for_each(|port| self.examine_slot(port, is_virtio_mem));
            }
            if change.removal_requested {
                match hotplug.port_of_bus(change.bus) {
                    Some(port) if self.detach(port) => hotplug.eject(port),
                    Some(_) => hotplug.postpone_removals(),
                    None => self.release_from_unknown_port(&mut hotplug, change.bus),
                }
            }
        }
        self.acpi_hotplug = Some(hotplug);
    }

    /// Handles the request to remove the device of a bus whose port is not known: the device was
    /// present at boot, or appeared together with another device. Only AML describes the port. So
    /// all devices that may be meant are stopped, and those that are still there after the ejection
    /// are started again.
    fn release_from_unknown_port(&mut self, hotplug: &mut AcpiHotplug, bus: u32) {
        let may_be_meant = |session: &Self, port: usize| {
            let mut devices = session.devices.iter().flatten();
            let has_memory = devices.any(|device| device.port == Some(port) && device.has_memory());
            hotplug.has_unknown_bus(port) && !has_memory
        };
        let (mut stopped, mut is_ready) = ([false; MAX_PORTS], true);
        for (port, stopped) in stopped.iter_mut().enumerate() {
            if may_be_meant(self, port) {
                *stopped = self.detach(port);
                is_ready &= *stopped;
            }
        }
        if is_ready {
            hotplug.eject_bus(bus);
        } else {
            hotplug.postpone_removals();
        }
        for port in (0..MAX_PORTS).filter(|&port| stopped[port]) {
            if self.buses.port_has_device(port) {
                self.examine_slot(port, is_driven);
            } else {
                hotplug.mark_vacant(port, bus);
            }
        }
    }

    /// Attaches the device in a port's slot, if it is `wanted`.
    fn examine_slot(&mut self, port: usize, wanted: fn(&DeviceFunctionInfo) -> bool) {
        let space = self.engine.space();
        let found = must("PCI", self.buses.examine_slot(port, space, wanted));
        if let Some(function) = found {
            self.attach_pci(function, Some(port));
        }
    }

    /// Stops the device in the port's slot, if one is attached, and withdraws its memory. Returns
    /// whether the slot can be powered off. It cannot be powered off while memory is plugged or
    /// pinned for the device.
    fn detach(&mut self, port: usize) -> bool {
        if self.pinned_ranges.is_some() && self.edu_port == Some(port) {
            return false;
        }
        if let Some(entropy) = self.entropy.take_if(|entropy| entropy.is_in_slot(port)) {
            entropy.stop();
        }
        if self.balloon.as_ref().is_some_and(|balloon| balloon.is_in_slot(port))
            && let Some(memory) = &mut self.engine.hooks.balloon
        {
            Balloon::stop(self.balloon, memory);
            self.engine.hooks.balloon = None;
            self.report.event(&Event::BalloonLost { why: &"its removal was requested" });
        }
        let is_in_slot = |attached: &Option<AttachedDevice>| {
            attached.as_ref().is_some_and(|attached| attached.port == Some(port))
        };
        let Some(number) = self.devices.iter().position(is_in_slot) else { return true };
        let place = &mut self.devices[number];
        let Some(attached) = place.as_ref().filter(|attached| attached.is_removable()) else {
            return false;
        };
        let (node, region) = (attached.node(), attached.region());
        AttachedDevice::stop(place);
        let hotplug = &mut self.engine.hotplug;
        // The driver has announced the part of the region that it can use.
        let announced = hotplug.regions().find(|&(_, range)| region.covers(range));
        if let Some((id, _)) = announced
            && let Err(error) = hotplug.withdraw(id)
        {
            give_up(format_args!("{region} cannot be withdrawn: {error:?}"));
        }
        self.engine.hooks.workload.remove_region(number);
        self.report.event(&Event::Removed { device: number, node });
        self.report.ok(format_args!("device {number} is gone"));
        true
    }
}
