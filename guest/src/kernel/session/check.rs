//! Finds the device that `hotmem.check` names, and checks it.

use super::Session;
use crate::kernel::conformance::{self, Adapter, DeviceRegisters, PciRegisters, Window};
use crate::kernel::fatal::{give_up, must};
use crate::kernel::progress::WATCHDOG;
use hotmem_directmap::Caching;
use hotmem_guest::cmdline::CheckedDevice;
use hotmem_guest::report::Verdict;
use hotmem_guest::watchdog::Step;
use virtio_drivers::transport::DeviceType;
use virtio_drivers::transport::pci::bus::DeviceFunctionInfo;
use virtio_drivers::transport::pci::virtio_device_type;

/// The first registers of virtio-mmio (virtio 1.3, 4.2.2): `MagicValue`, `Version` and `DeviceID`.
const MAGIC_VALUE: u64 = 0;
const VERSION: u64 = 4;
const DEVICE_ID: u64 = 8;
/// The value of `MagicValue`: "virt". A legacy device has another version than 2.
const VIRT: u32 = 0x7472_6976;

impl Session {
    /// Checks the first device of this kind, in the place of a run with devices.
    #[inline(never)]
    pub(crate) fn check_device(&mut self, kind: CheckedDevice) -> Verdict {
        WATCHDOG.enter(Step::Check);
        let (id, wanted) = match kind {
            CheckedDevice::Balloon => (5, DeviceType::MemoryBalloon),
            CheckedDevice::Memory => (24, DeviceType::Memory),
        };
        let on_pci = self.find_on_pci(id, wanted);
        let Some(registers) = on_pci.or_else(|| self.find_on_mmio(id)) else {
            give_up("there is no such device")
        };
        let space = self.engine.space();
        let (clock, options) = (self.clock, self.options);
        let Some(mut adapter) =
            Adapter::new(registers, space, clock, self.boot_memory, options.check_host)
        else {
            give_up("there is no memory for queues and buffers")
        };
        conformance::run(kind, options.check_known, &mut adapter, clock, &mut self.report);
        self.report.finish()
    }

    fn find_on_pci(&mut self, id: u32, wanted: DeviceType) -> Option<DeviceRegisters> {
        let is_wanted = |info: &DeviceFunctionInfo| virtio_device_type(info) == Some(wanted);
        let found = must("PCI", self.buses.find(self.engine.space(), is_wanted));
        let (function, _) = found.iter().next()?;
        PciRegisters::find(&mut self.buses, function, id).map(DeviceRegisters::Pci)
    }

    fn find_on_mmio(&mut self, id: u32) -> Option<DeviceRegisters> {
        self.mmio_devices.iter().find_map(|device| {
            let (addr, len) = (device.phys_addr, device.size);
            let start = self.engine.space().map_bytes(addr, len, Caching::Uncached);
            // SAFETY: the loader has given the address of the registers, which stay mapped, and nothing else
            // uses them.
            let window = unsafe { Window::new(must("virtio-mmio", start), len) };
            let first_registers =
                [MAGIC_VALUE, VERSION, DEVICE_ID].map(|offset| window.read::<u32>(offset));
            (first_registers == [VIRT, 2, id]).then_some(DeviceRegisters::Mmio(window))
        })
    }
}
