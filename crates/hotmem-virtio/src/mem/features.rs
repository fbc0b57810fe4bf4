//! Defines the feature bits that the driver supports.

use bitflags::bitflags;

bitflags! {
    /// Feature bits of a virtio-mem device: those of its device type (VIRTIO 1.3, section 5.15.3),
    /// and, of those for all devices (section 6), the ones that the driver uses.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct Features: u64 {
        /// `node_id` in the configuration is an ACPI proximity domain.
        const ACPI_PXM = 1 << 0;
        /// Unplugged memory must not even be read. The driver never reads unplugged memory, so it
        /// always accepts this feature.
        const UNPLUGGED_INACCESSIBLE = 1 << 1;
        /// Plugged memory survives a suspend of the guest.
        const PERSISTENT_SUSPEND = 1 << 2;
        /// The device follows version 1 of the specification or later.
        const VERSION_1 = 1 << 32;
        /// The device accesses memory through the platform (an IOMMU or shared pages), so the
        /// queue's memory must be described by the address that the device sees.
        const ACCESS_PLATFORM = 1 << 33;
        /// The device needs the barriers for a device of the platform, not only those for one that
        /// is simulated. The driver always uses them.
        const ORDER_PLATFORM = 1 << 36;
    }
}
