//! CXL memory devices of a machine (type 3), below host bridges.

use hotmem::Bytes;

/// The CXL devices and windows of a machine.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Cxl {
    /// The devices.
    pub devices: Vec<CxlDevice>,
    /// The windows. Host bridges are those that windows and devices name.
    pub windows: Vec<CxlWindow>,
}

/// A CXL memory device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CxlDevice {
    /// The size of its memory: whole 256 MiB.
    pub size: Bytes,
    /// What its memory is.
    pub kind: CxlKind,
    /// The host bridge above it.
    pub bridge: u8,
}

/// The kind of a device's memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CxlKind {
    /// Volatile memory.
    Volatile,
    /// Persistent memory.
    Persistent,
    /// Dynamic capacity, of which the device has nothing at first.
    Dynamic,
}

/// Addresses that are routed to host bridges.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CxlWindow {
    /// The size: whole 256 MiB.
    pub size: Bytes,
    /// The bridges between which the addresses alternate.
    pub bridges: Vec<u8>,
}

impl Cxl {
    /// Returns devices of volatile memory below one bridge, and a window that has room for all of them.
    #[must_use]
    pub fn volatile(sizes: &[Bytes]) -> Cxl {
        Cxl::below_one_bridge(sizes, CxlKind::Volatile)
    }

    /// Returns devices of dynamic capacity below one bridge, and a window that has room for all of them.
    #[must_use]
    pub fn dynamic(sizes: &[Bytes]) -> Cxl {
        Cxl::below_one_bridge(sizes, CxlKind::Dynamic)
    }

    fn below_one_bridge(sizes: &[Bytes], kind: CxlKind) -> Cxl {
        let devices: Vec<_> =
            sizes.iter().map(|&size| CxlDevice { size, kind, bridge: 0 }).collect();
        let size = sizes.iter().copied().fold(Bytes::ZERO, |sum, size| sum + size);
        Cxl { devices, windows: vec![CxlWindow { size, bridges: vec![0] }] }
    }

    /// Returns the options of QEMU's machine type.
    pub(super) fn machine_options(&self) -> String {
        let mut options = ",cxl=on".to_owned();
        for (n, CxlWindow { size, bridges }) in self.windows.iter().enumerate() {
            for (place, bridge) in bridges.iter().enumerate() {
                options += &format!(",cxl-fmw.{n}.targets.{place}=cxl{bridge}");
            }
            options += &format!(",cxl-fmw.{n}.size={}B", size.0);
        }
        options
    }

    /// Adds the options of bridges, ports and devices.
    pub(super) fn add_options(&self, mut add: impl FnMut(&str, String)) {
        let of_windows = self.windows.iter().flat_map(|window| window.bridges.iter().copied());
        let of_devices = self.devices.iter().map(|device| device.bridge);
        let mut bridges: Vec<_> = of_windows.chain(of_devices).collect();
        bridges.sort_unstable();
        bridges.dedup();
        for bridge in bridges {
            // Buses below ports get the numbers after that of their bridge.
            let bus = 40 * (u32::from(bridge) + 1);
            add("-device", format!("pxb-cxl,bus_nr={bus},bus=pcie.0,id=cxl{bridge}"));
        }
        for (n, &CxlDevice { size, kind, bridge }) in self.devices.iter().enumerate() {
            let Bytes(size) = size;
            let backend = format!("memory-backend-ram,id=cxlmem{n},size={size}B,share=on");
            add("-object", backend + ",reserve=off");
            // The chassis is not that of other ports.
            let port = format!("cxl-rp,port={n},bus=cxl{bridge},id=cxlport{n},chassis=7,slot={n}");
            add("-device", port);
            let memory = match kind {
                CxlKind::Volatile => format!("volatile-memdev=cxlmem{n}"),
                CxlKind::Persistent => format!("memdev=cxlmem{n},lsa=cxllabels{n}"),
                CxlKind::Dynamic => format!("volatile-dc-memdev=cxlmem{n},num-dc-regions=1"),
            };
            if kind == CxlKind::Persistent {
                add("-object", format!("memory-backend-ram,id=cxllabels{n},size=1M,share=on"));
            }
            let serial_number = n + 1;
            add(
                "-device",
                format!("cxl-type3,bus=cxlport{n},{memory},id=cxldev{n},sn={serial_number}"),
            );
        }
    }

    /// Returns the memory of all devices.
    pub(super) fn size(&self) -> Bytes {
        self.devices.iter().fold(Bytes::ZERO, |sum, device| sum + device.size)
    }
}
