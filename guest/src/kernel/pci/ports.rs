//! Finds ports with a hot-plug slot, watches their slots, and powers slots off.

use super::{BusError, Buses, HotPlugPort};
use crate::kernel::config_space::ConfigSpace;
use crate::kernel::memory::AddressSpace;
use hotmem_guest::slot::{Action, Slot, Writes};
use virtio_drivers::transport::pci::bus::{
    CapabilityInfo, ConfigurationAccess, DeviceFunction, DeviceFunctionInfo, HeaderType,
};

/// The identifier of the PCI Express capability (PCI Express Base Specification 5.0, 7.5.3). Its
/// registers and bits follow.
const PCI_EXPRESS: u8 = 0x10;
const HAS_SLOT: u16 = 1 << 8;
const SLOT_CAPABILITIES: u8 = 0x14;
const SLOT_REGISTER: u8 = 0x18;
const HOT_PLUG: u32 = 1 << 6;

impl Buses {
    /// Returns the action that a port's slot requires. Costs one read of a register.
    pub(crate) fn watch(&mut self, port: usize) -> Action {
        let Some(HotPlugPort { bridge, register, slot, .. }) = self.ports[port].as_mut() else {
            return Action::Nothing;
        };
        let (action, writes) = slot.step(self.config.read_word(*bridge, *register));
        self.config.write_slot(*bridge, *register, writes);
        action
    }

    /// Examines a new device in the port's slot. If `wanted` is true for the device, maps the
    /// device's registers and returns the device.
    pub(crate) fn examine_slot(
        &mut self,
        port: usize,
        memory: &mut AddressSpace,
        wanted: impl Fn(&DeviceFunctionInfo) -> bool,
    ) -> Result<Option<DeviceFunction>, BusError> {
        let Some(HotPlugPort { bridge, secondary, .. }) = self.ports[port] else { return Ok(None) };
        // After power-on a device needs some time until it answers.
        if !self.has_device_at(secondary, 0) {
            return Ok(None);
        }
        let Some((function, info)) = self.functions_on(secondary).next() else {
            return Ok(None);
        };
        if let Some(port) = &mut self.ports[port] {
            port.slot.mark_examined();
        }
        if info.header_type != HeaderType::Standard || !wanted(&info) {
            return Ok(None);
        }
        let window = self.window_of(bridge)?;
        self.place_bars(function, window)?;
        self.map_bars(function, memory)?;
        Ok(Some(function))
    }

    /// Returns whether there was a device in the port's slot at boot.
    pub(crate) fn port_was_occupied(&self, port: usize) -> bool {
        self.ports[port].is_some_and(|port| port.is_occupied)
    }

    /// Returns whether there is a device in the port's slot.
    pub(crate) fn port_has_device(&self, port: usize) -> bool {
        self.ports[port].is_some_and(|port| self.has_device_at(port.secondary, 0))
    }

    /// Powers the port's slot off. Its device must not be in use any more.
    pub(crate) fn power_off(&mut self, port: usize) {
        if let Some(HotPlugPort { bridge, register, slot, .. }) = self.ports[port].as_mut() {
            let writes = slot.power_off(self.config.read_word(*bridge, *register));
            self.config.write_slot(*bridge, *register, writes);
        }
    }

    /// Returns whether any port has a hot-plug slot.
    pub(crate) fn has_ports(&self) -> bool {
        self.ports[0].is_some()
    }

    /// Records the bridge if it is a port with a hot-plug slot.
    pub(super) fn add_port(
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
        let (Some((_, capabilities)), Some((register, slot_word))) =
            (word(SLOT_CAPABILITIES), word(SLOT_REGISTER))
        else {
            return Ok(None);
        };
        if private_header & HAS_SLOT == 0 || capabilities & HOT_PLUG == 0 {
            return Ok(None);
        }
        let slot = Slot::at_boot(slot_word, self.has_device_at(secondary, 0));
        // Acknowledge pending events: `slot` has been made from the state after these events.
        self.config.write_slot(bridge, register, Writes::acknowledging(slot_word));
        let index = self.ports.iter().position(Option::is_none).ok_or(BusError::TooManyPorts)?;
        self.ports[index] =
            Some(HotPlugPort { bridge, register, secondary, is_occupied: false, slot });
        Ok(Some(index))
    }
}

impl ConfigSpace {
    /// Writes Slot Control and Slot Status, which begin at `register`.
    fn write_slot(&mut self, bridge: DeviceFunction, register: u8, writes: Writes) {
        if let Some(status) = writes.status {
            self.write_half(bridge, register + 2, status);
        }
        if let Some(control) = writes.control {
            self.write_half(bridge, register, control);
        }
    }
}
