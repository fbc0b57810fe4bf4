//! Assigns addresses to windows of bridges and BARs of functions, if firmware has not assigned
//! them.

use super::{BRIDGE_GRANULARITY, BusError, Buses};
use crate::kernel::memory::AddressSpace;
use hotmem_directmap::Caching;
use hotmem_guest::mmio_window::MmioWindow;
use virtio_drivers::transport::pci::bus::{
    BarInfo, Command, ConfigurationAccess, DeviceFunction, MemoryBarType,
};

const MEMORY_WINDOW: u8 = 0x20;

impl Buses {
    /// Returns the window of a bridge that has no devices behind it. If the bridge has no window,
    /// assigns one.
    pub(super) fn window_of(&mut self, bridge: DeviceFunction) -> Result<MmioWindow, BusError> {
        let word = self.config.read_word(bridge, MEMORY_WINDOW);
        let (mut first, mut last) = ((word & 0xfff0) << 16, word | 0xf_ffff);
        if first == 0 || last < first {
            first = self.spare_window.align(BRIDGE_GRANULARITY).map_err(BusError::Window)?;
            self.spare_window.take(BRIDGE_GRANULARITY.into()).map_err(BusError::Window)?;
            last = first + (BRIDGE_GRANULARITY - 1);
            self.set_window(bridge, first, last);
        }
        Ok(MmioWindow::new(first, last.saturating_add(1)))
    }

    /// Sets the bridge's window, by bits 20 to 31 of its first and its last address.
    pub(super) fn set_window(&mut self, bridge: DeviceFunction, first: u32, last: u32) {
        self.config.write_word(bridge, MEMORY_WINDOW, last & 0xfff0_0000 | first >> 16);
    }

    /// Assigns addresses of `window` to the BARs that have no address. Returns the unused part of
    /// the window.
    pub(super) fn place_bars(
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

    pub(super) fn map_bars(
        &mut self,
        function: DeviceFunction,
        memory: &mut AddressSpace,
    ) -> Result<(), BusError> {
        for bar in self.bars(function)?.into_iter().flatten() {
            if let Some((address, size)) = bar.memory_address_size() {
                memory.map_bytes(address, size, Caching::Uncached).map_err(BusError::Memory)?;
            }
        }
        Ok(())
    }

    fn bars(&mut self, function: DeviceFunction) -> Result<[Option<BarInfo>; 6], BusError> {
        self.root.bars(function).map_err(|error| BusError::Bar(function, error))
    }

    /// Enables the function's memory decoding and DMA. Its interrupt line stays disabled.
    pub(super) fn enable(&mut self, function: DeviceFunction) {
        let (_, command) = self.root.get_status_command(function);
        let enabled = Command::MEMORY_SPACE | Command::BUS_MASTER | Command::INTERRUPT_DISABLE;
        self.root.set_command(function, command | enabled);
    }
}
