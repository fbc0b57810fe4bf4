//! Connects to virtio devices by PCI or MMIO, and sets up their interrupts.

use super::hal::KernelHal;
use super::memory::{AddressSpace, MapError};
use super::memory_view::MemoryView;
use super::msix;
use super::pci::Buses;
use crate::arch::{Message, MessageTarget, interrupts, mmio};
use core::fmt;
use hotmem_directmap::Caching;
use hotmem_guest::cmdline::Interrupts;
use hotmem_guest::to_usize;
use hotmem_guest::virtio_mmio::MmioDevice;
use hotmem_virtio::balloon::Features;
use virtio_drivers::Result;
use virtio_drivers::transport::mmio::{MmioError, MmioTransport, MmioVersion};
use virtio_drivers::transport::pci::bus::{ConfigurationAccess, DeviceFunction, PCI_CAP_ID_VNDR};
use virtio_drivers::transport::pci::{PciTransport, VIRTIO_PCI_CAP_COMMON_CFG, VirtioPciError};
use virtio_drivers::transport::{
    DeviceStatus, DeviceType, InterruptStatus, SomeTransport, Transport,
};
use zerocopy::{FromBytes, Immutable, IntoBytes};

/// A device's transport.
pub(crate) struct DeviceTransport {
    transport: SomeTransport<'static>,
    /// The registers of a PCI device.
    common: Option<CommonConfig>,
    /// Whether the device interrupts by MSI-X.
    has_vector: bool,
}

/// How a device interrupts.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum InterruptMode {
    /// By an MSI-X message that only this device sends.
    OwnMessage,
    /// By an interrupt line that other devices may share. Contains the line's number, if the
    /// firmware gives one.
    SharedLine(Option<u32>),
    /// By an interrupt line that only this device uses.
    OwnLine(u32),
    /// The device does not interrupt, so the kernel polls it.
    Polling,
}

/// A device that can be started, with its interrupt.
pub(crate) struct ConnectedDevice {
    pub(crate) transport: DeviceTransport,
    pub(crate) interrupt_mode: InterruptMode,
}

/// The reason why a transport cannot be used.
pub(crate) enum ConnectError {
    /// The device is not a valid virtio PCI device.
    Pci(VirtioPciError),
    /// The device is not a valid virtio MMIO device.
    Mmio(MmioError),
    /// The device supports only the legacy interface, from before virtio 1.0.
    Legacy(DeviceType),
    /// The device's registers cannot be mapped.
    Memory(MapError),
}

impl ConnectedDevice {
    /// Connects to a PCI device whose registers are mapped. The device interrupts by `message`, if
    /// the device supports MSI-X and that is `allowed`.
    pub(crate) fn on_pci(
        buses: &mut Buses,
        function: DeviceFunction,
        allowed: Interrupts,
        message: Option<(Message, MessageTarget)>,
    ) -> core::result::Result<Self, ConnectError> {
        let mut view = MemoryView::of(buses, function);
        let transport = PciTransport::new::<KernelHal, _>(&mut view, function);
        let mut transport = transport.map_err(ConnectError::Pci)?;
        let missing = ConnectError::Pci(VirtioPciError::MissingCommonConfig);
        let common = CommonConfig::find(buses, function).ok_or(missing)?;
        let has_vector = message
            .filter(|_| allowed >= Interrupts::Msix)
            .is_some_and(|(message, target)| msix::enable(buses, function, message, target));
        let line = buses.irq(function);
        let interrupt_mode = if has_vector {
            InterruptMode::OwnMessage
        } else if may_use_line(allowed, line) && !must_be_polled(&mut transport) {
            buses.enable_line(function);
            InterruptMode::SharedLine(line)
        } else {
            InterruptMode::Polling
        };
        let transport = transport.into();
        let transport = DeviceTransport { transport, common: Some(common), has_vector };
        Ok(ConnectedDevice { transport, interrupt_mode })
    }

    /// Connects to the MMIO device at `place`. Returns `None` if `place` has no device.
    pub(crate) fn on_mmio(
        place: MmioDevice,
        allowed: Interrupts,
        space: &mut AddressSpace,
    ) -> core::result::Result<Option<Self>, ConnectError> {
        let MmioDevice { phys_addr, size, irq } = place;
        let registers = space.map_bytes(phys_addr, size, Caching::Uncached);
        let registers = registers.map_err(ConnectError::Memory)?.cast();
        // SAFETY: the registers are mapped and stay mapped, and nothing else uses them. The
        // loader has given their address, and the crate checks the magic number.
        let transport = match unsafe { MmioTransport::new(registers, to_usize(size)) } {
            Ok(transport) => transport,
            // Device ID 0 means that there is no device. The kernel does not drive devices whose ID
            // is unknown.
            Err(MmioError::InvalidDeviceID(_)) => return Ok(None),
            Err(error) => return Err(ConnectError::Mmio(error)),
        };
        if transport.version() == MmioVersion::Legacy {
            return Err(ConnectError::Legacy(transport.device_type()));
        }
        let interrupt_mode = match irq {
            Some(line) if may_use_line(allowed, irq) => InterruptMode::OwnLine(line),
            _ => InterruptMode::Polling,
        };
        let transport =
            DeviceTransport { transport: transport.into(), common: None, has_vector: false };
        Ok(Some(ConnectedDevice { transport, interrupt_mode }))
    }
}

/// Returns whether a device may interrupt by this line, if these interrupts are `allowed`.
fn may_use_line(allowed: Interrupts, line: Option<u32>) -> bool {
    allowed >= Interrupts::Intx && interrupts::has_line(line)
}

/// Returns whether the device must not interrupt by a line, because it is a balloon that takes
/// hints.
///
/// When a migration begins, QEMU's migration thread announces a change of the balloon's
/// configuration by an interrupt. If the interrupt is a message, this works. If the thread raises a
/// line that interrupts a CPU under TCG, QEMU 10 aborts with an assertion.
fn must_be_polled(transport: &mut impl Transport) -> bool {
    let hints = Features::FREE_PAGE_HINT.bits();
    transport.device_type() == DeviceType::MemoryBalloon
        && transport.read_device_features() & hints != 0
}

impl DeviceTransport {
    /// Returns the name of the transport.
    pub(crate) fn kind(&self) -> &'static str {
        match self.transport {
            SomeTransport::Mmio(_) => "mmio",
            _ => "pci",
        }
    }
}

impl InterruptMode {
    /// Returns whether the device interrupts by a line, so that its interrupt status must be read.
    pub(crate) fn is_line(self) -> bool {
        matches!(self, InterruptMode::SharedLine(_) | InterruptMode::OwnLine(_))
    }

    /// Enables the device's interrupt, which ends [`interrupts::wait_for_interrupt`]. Returns whether the
    /// device has an interrupt.
    pub(crate) fn enable(self) -> bool {
        match self {
            InterruptMode::OwnMessage => true,
            InterruptMode::SharedLine(irq) => interrupts::enable_shared_line(irq),
            InterruptMode::OwnLine(irq) => interrupts::enable_own_line(irq),
            InterruptMode::Polling => false,
        }
    }

    /// Returns the name that the command line uses.
    pub(crate) fn name(self) -> &'static str {
        match self {
            InterruptMode::OwnMessage => "msix",
            InterruptMode::SharedLine(_) | InterruptMode::OwnLine(_) => "intx",
            InterruptMode::Polling => "poll",
        }
    }
}

/// The registers of `virtio_pci_common_cfg` (virtio 1.3, 4.1.4.3) that set up queues.
///
/// virtio-drivers does not set MSI-X vectors, and writes the addresses of queues by 8 bytes. A
/// device may ignore such writes, because 64-bit registers are to be written in halves (4.1.3.1).
struct CommonConfig(usize);

impl CommonConfig {
    /// Indices of the registers.
    const CONFIG_VECTOR: usize = 16 / 2;
    const QUEUE_SELECT: usize = 22 / 2;
    const QUEUE_SIZE: usize = 24 / 2;
    const QUEUE_VECTOR: usize = 26 / 2;
    const QUEUE_ENABLE: usize = 28 / 2;
    const QUEUE_ADDRESSES: usize = 32 / 2;
    const BYTES: u64 = 56;

    /// Finds the registers by a capability of the function (virtio 1.3, 4.1.4).
    fn find(buses: &mut Buses, function: DeviceFunction) -> Option<Self> {
        const BAR: u8 = 4;
        const OFFSET: u8 = 8;
        let capability = buses.root.capabilities(function).find(|capability| {
            let [_, kind] = capability.private_header.to_le_bytes();
            capability.id == PCI_CAP_ID_VNDR && kind == VIRTIO_PCI_CAP_COMMON_CFG
        })?;
        let word = |field: u8| {
            Some(buses.config.read_word(function, capability.offset.checked_add(field)?))
        };
        let ([bar, ..], offset) = (word(BAR)?.to_le_bytes(), word(OFFSET)?);
        let registers = buses.registers(function, bar, offset, Self::BYTES)?;
        Some(CommonConfig(registers.as_ptr().expose_provenance()))
    }

    /// Selects vector 0 for changes of the configuration and for `queue` (virtio 1.3, 4.1.5.1.2).
    fn use_vector_for(&mut self, queue: u16) {
        self.write(Self::CONFIG_VECTOR, 0);
        self.write(Self::QUEUE_SELECT, queue);
        self.write(Self::QUEUE_VECTOR, 0);
    }

    /// Enables a queue of `size` descriptors whose descriptors, driver area and device area are at
    /// `addresses`.
    fn set_up_queue(&mut self, queue: u16, size: u32, addresses: [u64; 3]) {
        self.write(Self::QUEUE_SELECT, queue);
        // The size is at most `max_queue_size`, which has 16 bits.
        self.write(Self::QUEUE_SIZE, u16::try_from(size).unwrap_or(0));
        for (index, address) in addresses.into_iter().enumerate() {
            let low = u32::try_from(address & u64::from(u32::MAX)).unwrap_or(0);
            let high = u32::try_from(address >> 32).unwrap_or(0);
            let register = Self::QUEUE_ADDRESSES + 4 * index;
            // SAFETY: `find` has checked that the registers lie in a mapped BAR. They are aligned
            // to 4 bytes, because `BYTES` of them begin at an aligned offset.
            unsafe {
                mmio::write_u32(self.address(register), low);
                mmio::write_u32(self.address(register + 2), high);
            }
        }
        self.write(Self::QUEUE_ENABLE, 1);
    }

    fn write(&mut self, register: usize, value: u16) {
        // SAFETY: `find` has checked that the registers lie in a mapped BAR.
        unsafe { mmio::write_u16(self.address(register), value) }
    }

    /// Returns the address of the register with this index.
    fn address(&self, register: usize) -> usize {
        self.0 + 2 * register
    }
}

impl Transport for DeviceTransport {
    fn queue_set(&mut self, queue: u16, size: u32, descriptors: u64, driver: u64, device: u64) {
        let Some(common) = &mut self.common else {
            return self.transport.queue_set(queue, size, descriptors, driver, device);
        };
        if self.has_vector {
            common.use_vector_for(queue);
        }
        common.set_up_queue(queue, size, [descriptors, driver, device]);
    }

    fn device_type(&self) -> DeviceType {
        self.transport.device_type()
    }

    fn read_device_features(&mut self) -> u64 {
        self.transport.read_device_features()
    }

    fn write_driver_features(&mut self, features: u64) {
        self.transport.write_driver_features(features);
    }

    fn max_queue_size(&mut self, queue: u16) -> u32 {
        self.transport.max_queue_size(queue)
    }

    fn notify(&mut self, queue: u16) {
        self.transport.notify(queue);
    }

    fn get_status(&self) -> DeviceStatus {
        self.transport.get_status()
    }

    fn set_status(&mut self, status: DeviceStatus) {
        self.transport.set_status(status);
    }

    fn set_guest_page_size(&mut self, size: u32) {
        self.transport.set_guest_page_size(size);
    }

    fn requires_legacy_layout(&self) -> bool {
        self.transport.requires_legacy_layout()
    }

    fn queue_unset(&mut self, queue: u16) {
        self.transport.queue_unset(queue);
    }

    fn queue_used(&mut self, queue: u16) -> bool {
        self.transport.queue_used(queue)
    }

    fn ack_interrupt(&mut self) -> InterruptStatus {
        self.transport.ack_interrupt()
    }

    fn read_config_generation(&self) -> u32 {
        self.transport.read_config_generation()
    }

    fn read_config_space<T: FromBytes + IntoBytes>(&self, offset: usize) -> Result<T> {
        self.transport.read_config_space(offset)
    }

    fn write_config_space<T: IntoBytes + Immutable>(
        &mut self,
        offset: usize,
        value: T,
    ) -> Result<()> {
        self.transport.write_config_space(offset, value)
    }
}

impl fmt::Display for ConnectError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ConnectError::Pci(error) => error.fmt(f),
            ConnectError::Mmio(error) => error.fmt(f),
            ConnectError::Legacy(kind) => {
                write!(
                    f,
                    "the device {kind:?} has only the legacy interface, from before virtio 1.0"
                )
            }
            ConnectError::Memory(error) => error.fmt(f),
        }
    }
}
