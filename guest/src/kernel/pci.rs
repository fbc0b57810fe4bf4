//! PCI: configuration space, and the way to a device through it.
//!
//! Firmware for PCs gives buses their numbers, bridges their windows and BARs their addresses.
//! The minimal kind, made for virtual machines, does not: what a device needs and lacks is made
//! up for here.

use super::acpi::EcamArea;
use super::memory::{AddressSpace, ReachError};
use core::fmt;
use hotmem_guest::direct_map::Caching;
use hotmem_guest::mmio_window::{MmioWindow, WindowFull};
use hotmem_guest::to_usize;
use virtio_drivers::transport::pci::bus::{
    BarInfo, Cam, Command, ConfigurationAccess, DeviceFunction, DeviceFunctionInfo, HeaderType,
    MemoryBarType, PciError, PciRoot,
};
use x86_64::instructions::port::Port;

/// Addresses below the I/O APIC that belong to no RAM or firmware on any PC, for BARs that have
/// none.
const SPARE_WINDOW: core::ops::Range<u32> = 0xfe00_0000..0xfec0_0000;
/// Bridges decode memory in such steps.
const BRIDGE_STEP: u32 = 1 << 20;
/// Bridges behind bridges: more are a loop.
const MAX_DEPTH: u32 = 8;

const BUS_NUMBERS: u8 = 0x18;
const MEMORY_WINDOW: u8 = 0x20;
const INTERRUPT: u8 = 0x3c;

/// The PCI buses of segment 0.
pub(crate) struct Buses {
    /// For the crate's own functions.
    pub(crate) root: PciRoot<ConfigSpace>,
    config: ConfigSpace,
    spare: MmioWindow,
    last_bus: u8,
}

/// Why a device cannot be reached.
#[derive(Clone, Copy, Debug)]
pub(crate) enum BusError {
    /// There are more buses than numbers.
    OutOfBusNumbers,
    /// There are more BARs than addresses.
    Window(WindowFull),
    /// A BAR says about itself what cannot be.
    Bar(DeviceFunction, PciError),
    /// A BAR or the configuration space cannot be mapped.
    Memory(ReachError),
}

/// A way to configuration space.
#[derive(Clone, Copy)]
pub(crate) enum ConfigSpace {
    /// Memory, from where bus 0 is or would be.
    Ecam {
        /// Mapped from `first_bus` to `last_bus`.
        base: *mut u32,
        first_bus: u8,
        last_bus: u8,
    },
    /// The ports 0xcf8 and 0xcfc.
    Ports,
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
        Ok(Buses { root: PciRoot::new(config), config, spare, last_bus: 0 })
    }

    /// The first device that is `wanted`, with its registers mapped and interrupts enabled.
    pub(crate) fn find(
        &mut self,
        memory: &mut AddressSpace,
        wanted: impl Fn(&DeviceFunctionInfo) -> bool,
    ) -> Result<Option<DeviceFunction>, BusError> {
        let found = self.find_on(0, 0, &wanted)?;
        if let Some(function) = found {
            self.map_bars(function, memory)?;
        }
        Ok(found)
    }

    /// The interrupt line of the 8259s that firmware has routed the function to.
    pub(crate) fn irq(&self, function: DeviceFunction) -> Option<u8> {
        let [line, pin, ..] = self.config.read_word(function, INTERRUPT).to_le_bytes();
        (pin != 0 && (1..16).contains(&line)).then_some(line)
    }

    fn find_on(
        &mut self,
        bus: u8,
        depth: u32,
        wanted: &dyn Fn(&DeviceFunctionInfo) -> bool,
    ) -> Result<Option<DeviceFunction>, BusError> {
        for (function, info) in self.root.enumerate_bus(bus) {
            match info.header_type {
                HeaderType::Standard if wanted(&info) => {
                    self.place_bars(function)?;
                    return Ok(Some(function));
                }
                HeaderType::PciPciBridge if depth < MAX_DEPTH => {
                    if let Some(found) = self.find_behind(function, depth, wanted)? {
                        return Ok(Some(found));
                    }
                }
                _ => {}
            }
        }
        Ok(None)
    }

    fn find_behind(
        &mut self,
        bridge: DeviceFunction,
        depth: u32,
        wanted: &dyn Fn(&DeviceFunctionInfo) -> bool,
    ) -> Result<Option<DeviceFunction>, BusError> {
        let [_, mut secondary, _, latency] =
            self.config.read_word(bridge, BUS_NUMBERS).to_le_bytes();
        let numbered = secondary != 0;
        if !numbered {
            secondary = self.last_bus.checked_add(1).ok_or(BusError::OutOfBusNumbers)?;
            let numbers = u32::from_le_bytes([bridge.bus, secondary, u8::MAX, latency]);
            self.config.write_word(bridge, BUS_NUMBERS, numbers);
        }
        self.last_bus = self.last_bus.max(secondary);
        let start = self.spare.align(BRIDGE_STEP).map_err(BusError::Window)?;

        let found = self.find_on(secondary, depth + 1, wanted)?;

        if !numbered {
            let numbers = u32::from_le_bytes([bridge.bus, secondary, self.last_bus, latency]);
            self.config.write_word(bridge, BUS_NUMBERS, numbers);
        }
        if self.spare.next() > start {
            let end = self.spare.align(BRIDGE_STEP).map_err(BusError::Window)?;
            // Bits 20 to 31 of the first and of the last address that the bridge passes on.
            let window = (end - 1) & 0xfff0_0000 | start >> 16;
            self.config.write_word(bridge, MEMORY_WINDOW, window);
        }
        self.enable(bridge);
        Ok(found)
    }

    fn place_bars(&mut self, function: DeviceFunction) -> Result<(), BusError> {
        for (index, bar) in self.bars(function)?.into_iter().enumerate() {
            let index = u8::try_from(index).unwrap_or(u8::MAX);
            if let Some(BarInfo::Memory { address: 0, size, address_type, .. }) = bar {
                let address = self.spare.take(size).map_err(BusError::Window)?;
                match address_type {
                    MemoryBarType::Width64 => {
                        self.root.set_bar_64(function, index, address.into());
                    }
                    _ => self.root.set_bar_32(function, index, address),
                }
            }
        }
        self.enable(function);
        Ok(())
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

    /// Lets the function decode memory, access it and interrupt.
    fn enable(&mut self, function: DeviceFunction) {
        let (_, command) = self.root.get_status_command(function);
        let command =
            (command | Command::MEMORY_SPACE | Command::BUS_MASTER) - Command::INTERRUPT_DISABLE;
        self.root.set_command(function, command);
    }
}

impl ConfigSpace {
    fn ecam(area: EcamArea, memory: &mut AddressSpace) -> Result<Self, ReachError> {
        let EcamArea { phys_addr, first_bus, last_bus } = area;
        let (first, end) = (u64::from(first_bus) << 20, (u64::from(last_bus) + 1) << 20);
        let bad_range = ReachError::BadRange { phys_addr, len: end };
        let len = end.checked_sub(first).ok_or(bad_range)?;
        let start = phys_addr.checked_add(first).ok_or(bad_range)?;
        let mapped = memory.reach(start, len, Caching::Uncached)?;
        let base = mapped.as_ptr().wrapping_sub(to_usize(first)).cast();
        Ok(ConfigSpace::Ecam { base, first_bus, last_bus })
    }
}

impl ConfigurationAccess for ConfigSpace {
    fn read_word(&self, function: DeviceFunction, register: u8) -> u32 {
        match *self {
            ConfigSpace::Ecam { base, first_bus, last_bus } => {
                if !(first_bus..=last_bus).contains(&function.bus) {
                    return u32::MAX;
                }
                let offset = Cam::Ecam.cam_offset(function, register);
                // SAFETY: the bus lies within what is mapped, so the register does. Reading it
                // has no effect.
                unsafe { base.byte_add(offset as usize).read_volatile() }
            }
            ConfigSpace::Ports => {
                let mut data = select(function, register);
                // SAFETY: reading a register has no effect.
                unsafe { data.read() }
            }
        }
    }

    fn write_word(&mut self, function: DeviceFunction, register: u8, word: u32) {
        match *self {
            ConfigSpace::Ecam { base, first_bus, last_bus } => {
                if (first_bus..=last_bus).contains(&function.bus) {
                    let offset = Cam::Ecam.cam_offset(function, register);
                    // SAFETY: as above; the callers keep to what the registers are for.
                    unsafe { base.byte_add(offset as usize).write_volatile(word) }
                }
            }
            ConfigSpace::Ports => {
                let mut data = select(function, register);
                // SAFETY: the callers keep to what the registers are for.
                unsafe { data.write(word) }
            }
        }
    }

    unsafe fn unsafe_clone(&self) -> Self {
        *self
    }
}

/// The port of a register's data. Interrupt handlers stay away from it.
fn select(function: DeviceFunction, register: u8) -> Port<u32> {
    let address = 1 << 31 | Cam::MmioCam.cam_offset(function, register);
    // SAFETY: this only chooses the register.
    unsafe { Port::new(0xcf8).write(address) };
    Port::new(0xcfc)
}

impl fmt::Display for BusError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            BusError::OutOfBusNumbers => f.write_str("more than 255 buses"),
            BusError::Window(error) => error.fmt(f),
            BusError::Bar(function, error) => write!(f, "{function}: {error}"),
            BusError::Memory(error) => error.fmt(f),
        }
    }
}
