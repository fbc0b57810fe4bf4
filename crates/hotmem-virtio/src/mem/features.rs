//! The feature bits that the driver understands.

use bitflags::bitflags;

bitflags! {
    /// Feature bits of a virtio-mem device, those of its own (5.15.3) and those of every device
    /// (6) that matter here.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct Features: u64 {
        /// `node_id` in the configuration is an ACPI proximity domain.
        const ACPI_PXM = 1 << 0;
        /// Unplugged memory must not even be read. The driver never does, so it always agrees.
        const UNPLUGGED_INACCESSIBLE = 1 << 1;
        /// Plugged memory survives a suspend of the guest.
        const PERSISTENT_SUSPEND = 1 << 2;
        /// The device follows version 1 of the specification or later.
        const VERSION_1 = 1 << 32;
        /// The device sees memory through the platform (an IOMMU, shared pages): whoever provides
        /// the queue's memory gives its address as the device sees it.
        const ACCESS_PLATFORM = 1 << 33;
    }
}
