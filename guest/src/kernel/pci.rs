//! PCI: the way to devices, and the slots in which they come and go.
//!
//! Firmware for PCs gives buses their numbers, bridges their windows and BARs their addresses.
//! The minimal kind, made for virtual machines, does not: what a device needs and lacks is made
//! up for here.

use super::acpi::EcamArea;
use super::config_space::ConfigSpace;
use super::limits::MAX_DEVICES;
use super::memory::{AddressSpace, ReachError, virt};
use core::fmt;
use core::ptr::NonNull;
use hotmem_directmap::Caching;
use hotmem_guest::mmio_window::{MmioWindow, WindowFull};
use hotmem_guest::slot::{Slot, Wanted};
use virtio_drivers::transport::pci::bus::{
    BarInfo, CapabilityInfo, Command, ConfigurationAccess, DeviceFunction, DeviceFunctionInfo,
    HeaderType, MemoryBarType, PciError, PciRoot,
};

/// Addresses below the I/O APIC that belong to no RAM or firmware on any PC, for BARs that have
/// none.
const SPARE_WINDOW: core::ops::Range<u32> = 0xfe00_0000..0xfec0_0000;
/// Bridges decode memory in such steps.
const BRIDGE_STEP: u32 = 1 << 20;
/// Bridges behind bridges: more are a loop.
const MAX_DEPTH: u32 = 8;

/// Most ports with hot-plug slots.
pub(crate) const MAX_PORTS: usize = 32;

/// The capability of PCI Express (PCI Express Base Specification 5.0, 7.5.3), and what of it says
/// that a port has a slot, and that this is for hot-plug.
const PCI_EXPRESS: u8 = 0x10;
const HAS_SLOT: u16 = 1 << 8;
const SLOT_CAPABILITIES: u8 = 0x14;
const SLOT_REGISTER: u8 = 0x18;
const HOT_PLUG: u32 = 1 << 6;

const BUS_NUMBERS: u8 = 0x18;
const MEMORY_WINDOW: u8 = 0x20;
const INTERRUPT: u8 = 0x3c;

/// The PCI buses of segment 0.
pub(crate) struct Buses {
    /// For the crate's own functions.
    pub(crate) root: PciRoot<ConfigSpace>,
    pub(super) config: ConfigSpace,
    spare: MmioWindow,
    /// Buses that have been looked at, a bit each.
    reached: [u64; 4],
    ports: [Option<HotPlugPort>; MAX_PORTS],
}

/// Devices, in the order of their addresses.
#[derive(Default)]
pub(crate) struct Found([Option<(DeviceFunction, Option<usize>)>; MAX_DEVICES]);

/// A port with a hot-plug slot.
#[derive(Clone, Copy)]
struct HotPlugPort {
    bridge: DeviceFunction,
    /// Slot Control and Slot Status.
    register: u8,
    /// The bus behind it.
    secondary: u8,
    /// Something was found there at boot.
    occupied: bool,
    slot: Slot,
}

/// The reason why a device cannot be reached.
#[derive(Clone, Copy, Debug)]
pub(crate) enum BusError {
    /// There are more buses than numbers.
    OutOfBusNumbers,
    /// There are more ports with hot-plug slots than [`MAX_PORTS`].
    TooManyPorts,
    /// There are more devices that are wanted than [`MAX_DEVICES`].
    TooManyDevices,
    /// There are more BARs than addresses.
    Window(WindowFull),
    /// A BAR says about itself what cannot be.
    Bar(DeviceFunction, PciError),
    /// A BAR or the configuration space cannot be mapped.
    Memory(ReachError),
}

impl Buses {
    /// Finds the way to configuration space.
    pub(crate) fn open(
        ecam: Option<EcamArea>,
        memory: &mut AddressSpace,
    ) -> Result<Self, BusError> {
        let config = match ecam {
            Some(area) => ConfigSpace::ecam(area, memory).map_err(BusError::Memory)?,
            None => ConfigSpace::Ports,
        };
        let spare = MmioWindow::new(SPARE_WINDOW.start, SPARE_WINDOW.end);
        Ok(Buses {
            root: PciRoot::new(config),
            config,
            spare,
            reached: [0; 4],
            ports: [None; MAX_PORTS],
        })
    }

    /// Returns all devices that are `wanted`, with their registers mapped, and the ports of their
    /// hot-plug slots.
    pub(crate) fn find(
        &mut self,
        memory: &mut AddressSpace,
        wanted: impl Fn(&DeviceFunctionInfo) -> bool,
    ) -> Result<Found, BusError> {
        let mut found = Found::default();
        let buses = self.config.buses();
        let has_pci = self.answers(*buses.start());
        // A bus that no bridge leads to, and on which devices answer, is one more root: only AML
        // would name it.
        for bus in buses.filter(|_| has_pci) {
            if !self.is_reached(bus) && self.answers(bus) {
                self.find_on(bus, None, 0, &wanted, &mut found)?;
            }
        }
        for (function, _) in found.iter() {
            self.map_bars(function, memory)?;
        }
        Ok(found)
    }

    /// Returns what is to be done about what is in the port's slot. Cost: one read of a register.
    pub(crate) fn watch(&mut self, port: usize) -> Wanted {
        let Some(HotPlugPort { bridge, register, slot, .. }) = self.ports[port].as_mut() else {
            return Wanted::Nothing;
        };
        let (wanted, write) = slot.step(self.config.read_word(*bridge, *register));
        if let Some(word) = write {
            self.config.write_word(*bridge, *register, word);
        }
        wanted
    }

    /// Looks at what is new in the port's slot: the device, if it is `wanted`, with its registers
    /// mapped.
    pub(crate) fn look_behind(
        &mut self,
        port: usize,
        memory: &mut AddressSpace,
        wanted: impl Fn(&DeviceFunctionInfo) -> bool,
    ) -> Result<Option<DeviceFunction>, BusError> {
        let Some(HotPlugPort { bridge, secondary, .. }) = self.ports[port] else { return Ok(None) };
        // It takes its time after it was powered.
        if !self.answers_at(secondary, 0) {
            return Ok(None);
        }
        let Some((function, info)) = self.root.enumerate_bus(secondary).next() else {
            return Ok(None);
        };
        if let Some(port) = &mut self.ports[port] {
            port.slot.known();
        }
        if info.header_type != HeaderType::Standard || !wanted(&info) {
            return Ok(None);
        }
        let window = self.window_of(bridge)?;
        self.place_bars(function, window)?;
        self.map_bars(function, memory)?;
        Ok(Some(function))
    }

    /// Returns whether there was anything behind the port at boot.
    pub(crate) fn port_was_occupied(&self, port: usize) -> bool {
        self.ports[port].is_some_and(|port| port.occupied)
    }

    /// Returns whether there is anything behind the port.
    pub(crate) fn port_answers(&self, port: usize) -> bool {
        self.ports[port].is_some_and(|port| self.answers_at(port.secondary, 0))
    }

    /// Lets what is in the port's slot go. Nobody may use it any more.
    pub(crate) fn power_off(&mut self, port: usize) {
        if let Some(HotPlugPort { bridge, register, slot, .. }) = self.ports[port].as_mut() {
            let word = slot.power_off(self.config.read_word(*bridge, *register));
            self.config.write_word(*bridge, *register, word);
        }
    }

    /// Returns whether there is a slot for devices that come later.
    pub(crate) fn has_ports(&self) -> bool {
        self.ports[0].is_some()
    }

    /// Returns what a device is.
    pub(crate) fn info(&self, function: DeviceFunction) -> Option<DeviceFunctionInfo> {
        let mut on_bus = self.root.enumerate_bus(function.bus);
        on_bus.find(|&(found, _)| found == function).map(|(_, info)| info)
    }

    /// Returns the interrupt line of the 8259s that firmware has routed the function to.
    pub(crate) fn irq(&self, function: DeviceFunction) -> Option<u8> {
        let [line, pin, ..] = self.config.read_word(function, INTERRUPT).to_le_bytes();
        (pin != 0 && (1..16).contains(&line)).then_some(line)
    }

    /// Registers in a BAR, which is mapped; `None` if they are not all inside.
    pub(super) fn registers(
        &mut self,
        function: DeviceFunction,
        bar: u8,
        offset: u32,
        len: u64,
    ) -> Option<NonNull<u8>> {
        let bars = self.root.bars(function).ok()?;
        let (address, size) = bars.get(usize::from(bar))?.as_ref()?.memory_address_size()?;
        let end = u64::from(offset).checked_add(len)?;
        if address == 0 || end > size {
            return None;
        }
        NonNull::new(virt(address).wrapping_add(offset as usize))
    }

    /// Looks for devices on a bus, and whether there are any of any kind.
    fn find_on(
        &mut self,
        bus: u8,
        port: Option<usize>,
        depth: u32,
        wanted: &dyn Fn(&DeviceFunctionInfo) -> bool,
        found: &mut Found,
    ) -> Result<bool, BusError> {
        let mut occupied = false;
        self.reached[usize::from(bus / 64)] |= 1 << (bus % 64);
        for (function, info) in self.root.enumerate_bus(bus) {
            occupied = true;
            match info.header_type {
                HeaderType::Standard if wanted(&info) => {
                    self.spare = self.place_bars(function, self.spare)?;
                    found.add(function, port)?;
                }
                HeaderType::PciPciBridge if depth < MAX_DEPTH => {
                    self.find_behind(function, depth, wanted, found)?;
                }
                _ => {}
            }
        }
        Ok(occupied)
    }

    fn find_behind(
        &mut self,
        bridge: DeviceFunction,
        depth: u32,
        wanted: &dyn Fn(&DeviceFunctionInfo) -> bool,
        found: &mut Found,
    ) -> Result<(), BusError> {
        let [_, mut secondary, _, latency] =
            self.config.read_word(bridge, BUS_NUMBERS).to_le_bytes();
        let numbered = secondary != 0;
        if !numbered {
            secondary = self.last_reached().checked_add(1).ok_or(BusError::OutOfBusNumbers)?;
            let numbers = u32::from_le_bytes([bridge.bus, secondary, u8::MAX, latency]);
            self.config.write_word(bridge, BUS_NUMBERS, numbers);
        }
        let start = self.spare.align(BRIDGE_STEP).map_err(BusError::Window)?;
        let port = self.add_port(bridge, secondary)?;

        let occupied = self.find_on(secondary, port, depth + 1, wanted, found)?;
        if let Some(port) = port.and_then(|port| self.ports[port].as_mut()) {
            port.occupied = occupied;
        }

        if !numbered {
            let numbers = u32::from_le_bytes([bridge.bus, secondary, self.last_reached(), latency]);
            self.config.write_word(bridge, BUS_NUMBERS, numbers);
        }
        if self.spare.next() > start {
            let end = self.spare.align(BRIDGE_STEP).map_err(BusError::Window)?;
            self.set_window(bridge, start, end - 1);
        }
        self.enable(bridge);
        Ok(())
    }

    /// Remembers the bridge if it is a port with a hot-plug slot.
    fn add_port(
        &mut self,
        bridge: DeviceFunction,
        secondary: u8,
    ) -> Result<Option<usize>, BusError> {
        let express =
            self.root.capabilities(bridge).find(|capability| capability.id == PCI_EXPRESS);
        let Some(CapabilityInfo { offset, private_header, .. }) = express else { return Ok(None) };
        let word = |register: u8| {
            let register = offset.checked_add(register)?;
            Some((register, self.config.read_word(bridge, register)))
        };
        let (Some((_, capabilities)), Some((register, now))) =
            (word(SLOT_CAPABILITIES), word(SLOT_REGISTER))
        else {
            return Ok(None);
        };
        if private_header & HAS_SLOT == 0 || capabilities & HOT_PLUG == 0 {
            return Ok(None);
        }
        let slot = Slot::at_boot(now, self.answers_at(secondary, 0));
        // Events that are pending are about what is seen now.
        self.config.write_word(bridge, register, now);
        let index = self.ports.iter().position(Option::is_none).ok_or(BusError::TooManyPorts)?;
        self.ports[index] =
            Some(HotPlugPort { bridge, register, secondary, occupied: false, slot });
        Ok(Some(index))
    }

    /// Returns whether there is any device on a bus.
    fn answers(&self, bus: u8) -> bool {
        (0..32).any(|device| self.answers_at(bus, device))
    }

    /// Returns whether there is this device on a bus. A port has its own device 0 behind it.
    fn answers_at(&self, bus: u8, device: u8) -> bool {
        self.config.read_word(DeviceFunction { bus, device, function: 0 }, 0) != u32::MAX
    }

    fn is_reached(&self, bus: u8) -> bool {
        self.reached[usize::from(bus / 64)] >> (bus % 64) & 1 != 0
    }

    /// Returns the highest bus that has been looked at.
    fn last_reached(&self) -> u8 {
        (0..=u8::MAX).rev().find(|&bus| self.is_reached(bus)).unwrap_or(0)
    }

    /// Returns all addresses that the bridge passes on, now that there is nothing behind it; it is
    /// given some if it has none.
    fn window_of(&mut self, bridge: DeviceFunction) -> Result<MmioWindow, BusError> {
        let word = self.config.read_word(bridge, MEMORY_WINDOW);
        let (mut first, mut last) = ((word & 0xfff0) << 16, word | 0xf_ffff);
        if first == 0 || last < first {
            first = self.spare.align(BRIDGE_STEP).map_err(BusError::Window)?;
            self.spare.take(BRIDGE_STEP.into()).map_err(BusError::Window)?;
            last = first + (BRIDGE_STEP - 1);
            self.set_window(bridge, first, last);
        }
        Ok(MmioWindow::new(first, last.saturating_add(1)))
    }

    /// Bits 20 to 31 of the first and of the last address that the bridge passes on.
    fn set_window(&mut self, bridge: DeviceFunction, first: u32, last: u32) {
        self.config.write_word(bridge, MEMORY_WINDOW, last & 0xfff0_0000 | first >> 16);
    }

    /// Gives BARs that have no address one from the window; returns the rest of it.
    fn place_bars(
        &mut self,
        function: DeviceFunction,
        mut window: MmioWindow,
    ) -> Result<MmioWindow, BusError> {
        for (index, bar) in self.bars(function)?.into_iter().enumerate() {
            let index = u8::try_from(index).unwrap_or(u8::MAX);
            if let Some(BarInfo::Memory { address: 0, size, address_type, .. }) = bar {
                let address = window.take(size).map_err(BusError::Window)?;
                match address_type {
                    MemoryBarType::Width64 => {
                        self.root.set_bar_64(function, index, address.into());
                    }
                    _ => self.root.set_bar_32(function, index, address),
                }
            }
        }
        self.enable(function);
        Ok(window)
    }

    fn map_bars(
        &mut self,
        function: DeviceFunction,
        memory: &mut AddressSpace,
    ) -> Result<(), BusError> {
        for bar in self.bars(function)?.into_iter().flatten() {
            if let Some((address, size)) = bar.memory_address_size() {
                memory.reach(address, size, Caching::Uncached).map_err(BusError::Memory)?;
            }
        }
        Ok(())
    }

    fn bars(&mut self, function: DeviceFunction) -> Result<[Option<BarInfo>; 6], BusError> {
        self.root.bars(function).map_err(|error| BusError::Bar(function, error))
    }

    /// Lets the function decode memory and access it. It may not interrupt by its line.
    fn enable(&mut self, function: DeviceFunction) {
        let (_, command) = self.root.get_status_command(function);
        let enabled = Command::MEMORY_SPACE | Command::BUS_MASTER | Command::INTERRUPT_DISABLE;
        self.root.set_command(function, command | enabled);
    }

    /// Lets the function interrupt by its line.
    pub(super) fn enable_line(&mut self, function: DeviceFunction) {
        let (_, command) = self.root.get_status_command(function);
        self.root.set_command(function, command - Command::INTERRUPT_DISABLE);
    }
}

impl Found {
    /// Returns each device and the port whose slot it is in.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (DeviceFunction, Option<usize>)> {
        self.0.into_iter().flatten()
    }

    fn add(&mut self, function: DeviceFunction, port: Option<usize>) -> Result<(), BusError> {
        let vacant = self.0.iter_mut().find(|entry| entry.is_none());
        *vacant.ok_or(BusError::TooManyDevices)? = Some((function, port));
        Ok(())
    }
}

impl fmt::Display for BusError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            BusError::OutOfBusNumbers => f.write_str("more than 255 buses"),
            BusError::TooManyPorts => write!(f, "more than {MAX_PORTS} hot-plug slots"),
            BusError::TooManyDevices => write!(f, "more than {MAX_DEVICES} devices"),
            BusError::Window(error) => error.fmt(f),
            BusError::Bar(function, error) => write!(f, "{function}: {error}"),
            BusError::Memory(error) => error.fmt(f),
        }
    }
}
