//! Finds devices on PCI buses, and handles hot-plug slots.
//!
//! Firmware for PCs assigns numbers to buses, windows to bridges and addresses to BARs. Minimal
//! firmware for virtual machines does not, so this code assigns missing numbers, windows and
//! addresses.
//!
//! | file | contents |
//! |---|---|
//! | `pci.rs` | the search for devices, and their properties |
//! | `pci/addresses.rs` | windows of bridges, and BARs |
//! | `pci/ports.rs` | ports with hot-plug slots |

mod addresses;
mod ports;

use super::config_space::ConfigSpace;
use super::firmware::EcamArea;
use super::memory::{AddressSpace, MapError, virt};
use core::fmt;
use core::ops::Range;
use core::ptr::NonNull;
use hotmem_guest::device_tree::PciLines;
use hotmem_guest::limits::MAX_DEVICES;
use hotmem_guest::mmio_window::{MmioWindow, WindowFull};
use hotmem_guest::pci_functions;
use hotmem_guest::slot::Slot;
use virtio_drivers::transport::pci::bus::{
    Command, ConfigurationAccess, DeviceFunction, DeviceFunctionInfo, HeaderType, PciError, PciRoot,
};

/// The granularity of a bridge's memory window.
const BRIDGE_GRANULARITY: u32 = 1 << 20;
/// The maximal depth of nested bridges. A greater depth means that the bridges form a loop.
const MAX_DEPTH: u32 = 8;

/// The maximal number of ports with hot-plug slots.
pub(crate) const MAX_PORTS: usize = 32;

const BUS_NUMBERS: u8 = 0x18;

const INTERRUPT: u8 = 0x3c;

/// The PCI buses of segment 0.
pub(crate) struct Buses {
    /// The configuration space, as the virtio-drivers crate accesses it.
    pub(crate) root: PciRoot<ConfigSpace>,
    pub(super) config: ConfigSpace,
    spare_window: MmioWindow,
    /// The interrupt lines, if firmware has not written them to the functions.
    lines: Option<&'static PciLines>,
    /// A bit for each bus that was searched.
    searched_buses: [u64; 4],
    ports: [Option<HotPlugPort>; MAX_PORTS],
}

/// The devices that were found, in the order of their addresses, each with the port of its slot.
#[derive(Default)]
pub(crate) struct FoundDevices([Option<(DeviceFunction, Option<usize>)>; MAX_DEVICES]);

/// A port with a hot-plug slot.
#[derive(Clone, Copy)]
struct HotPlugPort {
    bridge: DeviceFunction,
    /// The register of Slot Control and Slot Status.
    register: u8,
    /// The bus below the port.
    secondary: u8,
    /// Whether a device was found in the slot at boot.
    is_occupied: bool,
    slot: Slot,
}

/// The reason why a device cannot be used.
#[derive(Clone, Copy, Debug)]
pub(crate) enum BusError {
    /// There are more buses than bus numbers.
    OutOfBusNumbers,
    /// There are more ports with hot-plug slots than [`MAX_PORTS`].
    TooManyPorts,
    /// There are more devices for the kernel to drive than [`MAX_DEVICES`].
    TooManyDevices,
    /// There are too few addresses for BARs.
    Window(WindowFull),
    /// A BAR is invalid.
    Bar(DeviceFunction, PciError),
    /// A BAR or the configuration space cannot be mapped.
    Memory(MapError),
}

impl Buses {
    /// Opens configuration space. BARs to which firmware has assigned no address get addresses of
    /// `bar_window`. `lines` are the interrupt lines, if firmware has not written them to the functions.
    pub(crate) fn open(
        ecam: Option<EcamArea>,
        bar_window: Range<u32>,
        lines: Option<&'static PciLines>,
        memory: &mut AddressSpace,
    ) -> Result<Self, BusError> {
        let config = match ecam {
            Some(area) => ConfigSpace::ecam(area, memory).map_err(BusError::Memory)?,
            None => ConfigSpace::ports(),
        };
        let spare_window = MmioWindow::new(bar_window.start, bar_window.end);
        Ok(Buses {
            root: PciRoot::new(config),
            config,
            spare_window,
            lines,
            searched_buses: [0; 4],
            ports: [None; MAX_PORTS],
        })
    }

    /// Returns all devices for which `wanted` is true, and the ports of their hot-plug slots. Maps
    /// the registers of these devices.
    pub(crate) fn find(
        &mut self,
        memory: &mut AddressSpace,
        wanted: impl Fn(&DeviceFunctionInfo) -> bool,
    ) -> Result<FoundDevices, BusError> {
        let mut found = FoundDevices::default();
        let buses = self.config.buses();
        let has_pci = self.has_device(*buses.start());
        // A bus that has devices although no bridge leads to it is another root bus. Only AML lists
        // root buses, so search all buses.
        for bus in buses.filter(|_| has_pci) {
            if !self.is_searched(bus) && self.has_device(bus) {
                self.find_on(bus, None, 0, &wanted, &mut found)?;
            }
        }
        for (function, _) in found.iter() {
            self.map_bars(function, memory)?;
        }
        Ok(found)
    }

    /// Returns the identification of a function.
    pub(crate) fn info(&self, function: DeviceFunction) -> Option<DeviceFunctionInfo> {
        self.functions_on(function.bus).find(|&(found, _)| found == function).map(|(_, info)| info)
    }

    /// Returns the interrupt line of the function.
    pub(crate) fn irq(&self, function: DeviceFunction) -> Option<u32> {
        let [line, pin, ..] = self.config.read_word(function, INTERRUPT).to_le_bytes();
        let Some(lines) = self.lines else {
            return (pin != 0 && (1..16).contains(&line)).then_some(line.into());
        };
        if !(1..=4).contains(&pin) {
            return None;
        }
        // Each bridge shifts the pins by the number of the device (PCI-to-PCI Bridge Architecture
        // Specification 1.2, 9.1).
        let (mut at, mut pin) = (function, pin);
        for _ in 0..=MAX_DEPTH {
            if at.bus == *self.config.buses().start() {
                return lines.number(at.device, pin);
            }
            pin = (pin - 1 + at.device) % 4 + 1;
            at = self.bridge_to(at.bus)?;
        }
        None
    }

    /// Returns the bridge to a bus.
    pub(super) fn bridge_to(&self, bus: u8) -> Option<DeviceFunction> {
        let above = (0..bus).filter(|&above| self.is_searched(above));
        let mut bridges = above
            .flat_map(|above| self.functions_on(above))
            .filter(|(_, info)| info.header_type == HeaderType::PciPciBridge);
        let leads_to_bus = |bridge| {
            let [_, secondary, ..] = self.config.read_word(bridge, BUS_NUMBERS).to_le_bytes();
            secondary == bus
        };
        bridges.find(|&(bridge, _)| leads_to_bus(bridge)).map(|(bridge, _)| bridge)
    }

    /// Returns the address of `len` bytes of registers at `offset` in a BAR, which must be mapped.
    /// Returns `None` if the registers do not lie within the BAR.
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

    /// Searches a bus for wanted devices. Returns whether it has any device.
    fn find_on(
        &mut self,
        bus: u8,
        port: Option<usize>,
        depth: u32,
        wanted: &dyn Fn(&DeviceFunctionInfo) -> bool,
        found: &mut FoundDevices,
    ) -> Result<bool, BusError> {
        let mut occupied = false;
        self.searched_buses[usize::from(bus / 64)] |= 1 << (bus % 64);
        for (function, info) in self.functions_on(bus) {
            occupied = true;
            match info.header_type {
                HeaderType::Standard if wanted(&info) => {
                    self.spare_window = self.place_bars(function, self.spare_window)?;
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
        found: &mut FoundDevices,
    ) -> Result<(), BusError> {
        let [_, mut secondary, _, latency] =
            self.config.read_word(bridge, BUS_NUMBERS).to_le_bytes();
        let is_numbered = secondary != 0;
        if !is_numbered {
            secondary = self.last_searched().checked_add(1).ok_or(BusError::OutOfBusNumbers)?;
            let numbers = u32::from_le_bytes([bridge.bus, secondary, u8::MAX, latency]);
            self.config.write_word(bridge, BUS_NUMBERS, numbers);
        }
        let start = self.spare_window.align(BRIDGE_GRANULARITY).map_err(BusError::Window)?;
        let port = self.add_port(bridge, secondary)?;

        let occupied = self.find_on(secondary, port, depth + 1, wanted, found)?;
        if let Some(port) = port.and_then(|port| self.ports[port].as_mut()) {
            port.is_occupied = occupied;
        }

        if !is_numbered {
            let numbers =
                u32::from_le_bytes([bridge.bus, secondary, self.last_searched(), latency]);
            self.config.write_word(bridge, BUS_NUMBERS, numbers);
        }
        if self.spare_window.next() > start {
            let end = self.spare_window.align(BRIDGE_GRANULARITY).map_err(BusError::Window)?;
            self.set_window(bridge, start, end - 1);
        }
        self.enable(bridge);
        Ok(())
    }

    /// Iterates over the functions of all devices on a bus.
    fn functions_on(
        &self,
        bus: u8,
    ) -> impl Iterator<Item = (DeviceFunction, DeviceFunctionInfo)> + use<> {
        let config = self.config;
        let exists = move |at: DeviceFunction| {
            let read =
                |function, register| config.read_word(DeviceFunction { function, ..at }, register);
            pci_functions::functions(read).any(|function| function == at.function)
        };
        self.root.enumerate_bus(bus).filter(move |&(function, _)| exists(function))
    }

    /// Returns whether there is any device on a bus.
    fn has_device(&self, bus: u8) -> bool {
        (0..32).any(|device| self.has_device_at(bus, device))
    }

    /// Returns whether a bus has a device with this number. Behind a port, only number 0 is
    /// possible.
    fn has_device_at(&self, bus: u8, device: u8) -> bool {
        let function = DeviceFunction { bus, device, function: 0 };
        pci_functions::is_present(self.config.read_word(function, 0))
    }

    fn is_searched(&self, bus: u8) -> bool {
        self.searched_buses[usize::from(bus / 64)] >> (bus % 64) & 1 != 0
    }

    /// Returns the highest bus that was searched.
    fn last_searched(&self) -> u8 {
        (0..=u8::MAX).rev().find(|&bus| self.is_searched(bus)).unwrap_or(0)
    }

    /// Enables the function's interrupt line.
    pub(super) fn enable_line(&mut self, function: DeviceFunction) {
        let (_, command) = self.root.get_status_command(function);
        self.root.set_command(function, command - Command::INTERRUPT_DISABLE);
    }
}

impl FoundDevices {
    /// Iterates over the devices and the ports of their slots.
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
