//! Describes the machine, apart from its RAM. ACPI's tables or a device tree yield the description.

use super::general_events::GeneralEvents;
use super::slot_region::{SlotRegion, SlotsError};
use super::take_once::TakeOnce;
use crate::arch::IoPort;
use core::ops::Range;
use hotmem::{BootRange, Bytes, NodeId};
use hotmem_guest::cxl::CxlTable;
use hotmem_guest::device_tree::{DeviceTree, PciHost, PciLines};
use hotmem_guest::fixed_list::FixedList;
use hotmem_guest::limits::MAX_CPUS;
use hotmem_guest::nfit::{NfitError, PersistentRanges};
use hotmem_guest::virtio_mmio::{MmioDevice, MmioDevices};

/// What the kernel knows of the machine, apart from its RAM.
pub(crate) struct Firmware {
    /// Enabled processors.
    pub(crate) cpus: Cpus,
    /// The memory-mapped configuration space of PCI segment 0, if there is one.
    pub(crate) ecam: Option<EcamArea>,
    /// The addresses for BARs to which firmware has assigned no address.
    pub(crate) bar_window: Range<u32>,
    /// The interrupt lines of PCI, if a device tree describes them. Otherwise firmware has written them
    /// to the functions.
    pub(crate) pci_lines: Option<&'static PciLines>,
    /// The places for virtio devices in memory that a device tree lists.
    pub(crate) mmio_devices: MmioDevices,
    /// The registers of general-purpose events, if the FADT names I/O ports for them.
    pub(crate) events: Option<GeneralEvents>,
    /// The registers of memory slots, if the DSDT names them. An error is reported only if the run
    /// looks for devices.
    pub(crate) slots: Result<Option<SlotRegion>, SlotsError>,
    /// The I/O port of the power-management timer, if the FADT names one.
    pub(crate) pm_timer_port: Option<IoPort>,
    /// The nodes of boot memory. Memory that no table mentions is on node 0.
    pub(crate) nodes: FixedList<(BootRange, NodeId), MAX_NODE_RANGES>,
    /// The total size of all hot-pluggable ranges.
    pub(crate) hot_pluggable: Bytes,
    /// The bridges and windows of CXL, if there is a CEDT.
    pub(super) cxl: Option<CxlTable>,
    /// The highest proximity domain of any memory.
    pub(super) highest_domain: u32,
    /// The ranges of persistent memory. An error is reported only if the run uses persistent
    /// memory.
    pub(crate) persistent: Result<PersistentRanges, NfitError>,
}

/// Enabled processors.
pub(crate) struct Cpus {
    /// The number of processors; 1 if no table lists them.
    pub(crate) count: u32,
    ids: FixedList<u64, MAX_CPUS>,
}

/// The maximal number of ranges of boot memory with a node.
pub(super) const MAX_NODE_RANGES: usize = 128;

/// The memory-mapped configuration space of PCI.
#[derive(Clone, Copy)]
pub(crate) struct EcamArea {
    /// The address of bus 0, even if bus 0 is not in the area.
    pub(crate) phys_addr: u64,
    /// The first bus in the area.
    pub(crate) first_bus: u8,
    /// The last bus in the area.
    pub(crate) last_bus: u8,
}

/// What the firmware says about CXL.
#[derive(Clone, Copy)]
pub(crate) struct CxlFirmware {
    pub(crate) table: &'static CxlTable,
    /// The first node that has no memory yet.
    pub(crate) next_node: u32,
}

const NO_MEMORY: BootRange = BootRange { start: 0, len: Bytes::ZERO };

impl Firmware {
    /// The values for a PC without ACPI tables.
    const UNKNOWN: Self = Firmware {
        cpus: Cpus::SINGLE,
        ecam: None,
        // They are below the I/O APIC, and are neither RAM nor firmware on any PC.
        bar_window: 0xfe00_0000..0xfec0_0000,
        pci_lines: None,
        mmio_devices: MmioDevices::empty(MmioDevice::NONE),
        events: None,
        slots: Ok(None),
        pm_timer_port: None,
        nodes: FixedList::empty((NO_MEMORY, NodeId::ZERO)),
        hot_pluggable: Bytes::ZERO,
        cxl: None,
        highest_domain: 0,
        persistent: Ok(PersistentRanges::NONE),
    };

    /// Returns the description of a machine of which nothing is known yet. Ends the run at the second
    /// call.
    pub(crate) fn unknown() -> &'static mut Self {
        static FIRMWARE: TakeOnce<Firmware> = TakeOnce::new(Firmware::UNKNOWN);
        FIRMWARE.take()
    }

    /// Returns what is said about CXL.
    pub(crate) fn cxl(&'static self) -> Option<CxlFirmware> {
        let table = self.cxl.as_ref()?;
        Some(CxlFirmware { table, next_node: self.highest_domain.saturating_add(1) })
    }

    /// Adds what a device tree says.
    pub(crate) fn add_tree(&mut self, tree: &'static DeviceTree<'_>) {
        self.cpus = Cpus { count: tree.cpu_count.max(1), ids: tree.cpu_ids };
        self.pci_lines = Some(&tree.pci_lines);
        self.mmio_devices = tree.mmio_devices;
        if let Some(PciHost { config_space, first_bus, last_bus, window_start, window_end }) =
            tree.pci
        {
            // The space begins with that of the first bus.
            let phys_addr = config_space.wrapping_sub(u64::from(first_bus) << 20);
            self.ecam = Some(EcamArea { phys_addr, first_bus, last_bus });
            self.bar_window = window_start..window_end;
        }
    }
}

impl Cpus {
    const SINGLE: Self = Cpus { count: 1, ids: FixedList::empty(0) };

    /// Makes an empty list, to which the processors of a table are added.
    pub(super) const NONE: Self = Cpus { count: 0, ..Cpus::SINGLE };

    /// If there is no MADT, takes the processors with these IDs of their local APICs instead, which
    /// another table lists.
    pub(crate) fn add_if_unlisted(&mut self, apic_ids: Option<impl Iterator<Item = u8>>) {
        let Some(apic_ids) = apic_ids.filter(|_| self.count == 1 && self.ids.is_empty()) else {
            return;
        };
        self.count = 0;
        for id in apic_ids {
            self.add(Some(id.into()));
        }
        self.count = self.count.max(1);
    }

    /// Adds a processor, with the number by which it is started if it can be.
    pub(super) fn add(&mut self, id: Option<u64>) {
        self.count = self.count.saturating_add(1);
        if let Some(id) = id {
            // A processor without room in the list is counted, and not started.
            let _ = self.ids.push(id);
        }
    }

    /// Returns the numbers by which the processors are started, at most [`MAX_CPUS`].
    pub(crate) fn start_ids(&self) -> &[u64] {
        &self.ids
    }
}
