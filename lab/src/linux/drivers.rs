//! The device drivers of the Linux guest, and the programs that use them.

/// The device drivers to boot with.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Drivers {
    /// virtio-mem and the balloon.
    Virtio,
    /// Persistent memory.
    Nvdimm,
    /// CXL memory devices, with daxctl.
    Cxl,
    /// Memory slots, which the kernel itself drives.
    Dimms,
}

impl Drivers {
    /// Returns the modules of the drivers, each after those that it needs, as paths below the
    /// kernel's directory of drivers.
    pub(super) const fn modules(self) -> &'static [&'static str] {
        match self {
            Drivers::Virtio => &[
                "virtio/virtio_ring",
                "virtio/virtio",
                "virtio/virtio_pci_modern_dev",
                "virtio/virtio_pci_legacy_dev",
                "virtio/virtio_pci",
                "virtio/virtio_mem",
                "virtio/virtio_balloon",
            ],
            Drivers::Nvdimm => &[
                "nvdimm/libnvdimm",
                "nvdimm/nd_btt",
                "nvdimm/nd_pmem",
                "dax/dax_pmem",
                "dax/device_dax",
                "acpi/nfit/nfit",
            ],
            Drivers::Dimms => &[],
            Drivers::Cxl => &[
                "cxl/cxl_pci",
                "cxl/cxl_acpi",
                "cxl/cxl_mem",
                "dax/device_dax",
                "dax/dax_cxl",
                "dax/kmem",
            ],
        }
    }

    /// Returns the programs that the script calls besides BusyBox, and their libraries.
    pub(super) const fn programs(self) -> &'static [&'static str] {
        match self {
            Drivers::Virtio | Drivers::Nvdimm | Drivers::Dimms => &[],
            Drivers::Cxl => &[
                "bin/daxctl",
                "lib/x86_64-linux-gnu/ld-linux-x86-64.so.2",
                "lib/x86_64-linux-gnu/libc.so.6",
                "lib/x86_64-linux-gnu/libcrypto.so.3",
                "lib/x86_64-linux-gnu/libdaxctl.so.1",
                "lib/x86_64-linux-gnu/libiniparser.so.1",
                "lib/x86_64-linux-gnu/libjson-c.so.5",
                "lib/x86_64-linux-gnu/libkmod.so.2",
                "lib/x86_64-linux-gnu/liblzma.so.5",
                "lib/x86_64-linux-gnu/libndctl.so.6",
                "lib/x86_64-linux-gnu/libudev.so.1",
                "lib/x86_64-linux-gnu/libuuid.so.1",
                "lib/x86_64-linux-gnu/libzstd.so.1",
            ],
        }
    }
}
