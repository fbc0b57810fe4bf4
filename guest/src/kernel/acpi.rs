//! Reads ACPI's static tables: the processors, the nodes of memory, and PCI's configuration space.

use super::fatal::give_up;
use super::limits::MAX_CPUS;
use super::memory::AddressSpace;
use acpi::address::GenericAddress;
use acpi::fadt::Fadt;
use acpi::madt::{Madt, MadtEntry};
use acpi::mcfg::Mcfg;
use acpi::sdt::{SdtHeader, Signature};
use acpi::{AcpiError, AcpiHandler, AcpiTable, AcpiTables, PhysicalMapping};
use core::cell::RefCell;
use core::fmt;
use hotmem::{BootRange, Bytes, NodeId, PfnRange};
use hotmem_directmap::Caching;
use hotmem_guest::nfit::{NfitError, PersistentRanges};
use hotmem_guest::srat::memory_affinities;

/// The values that the kernel reads from the ACPI tables.
pub(crate) struct Firmware {
    /// Enabled processors.
    pub(crate) cpus: Cpus,
    /// The memory-mapped configuration space of PCI segment 0, if there is one.
    pub(crate) ecam: Option<EcamArea>,
    /// The I/O port of the status register of general-purpose events, if the FADT names one.
    pub(crate) gpe_port: Option<u16>,
    /// The I/O port of the power-management timer, if the FADT names one.
    pub(crate) pm_timer_port: Option<u16>,
    /// The nodes of boot memory. Memory that no table mentions is on node 0.
    pub(crate) nodes: MemoryNodes,
    /// The total size of all hot-pluggable ranges.
    pub(crate) hot_pluggable: Bytes,
    /// The ranges of persistent memory. An error is reported only if the run uses persistent
    /// memory.
    pub(crate) persistent: Result<PersistentRanges, NfitError>,
}

/// Enabled processors.
pub(crate) struct Cpus {
    /// The number of processors; 1 if there is no MADT.
    pub(crate) count: u32,
    ids: [u8; MAX_CPUS],
    len: usize,
}

/// The nodes of boot memory.
pub(crate) struct MemoryNodes {
    ranges: [(BootRange, NodeId); MAX_NODE_RANGES],
    len: usize,
}

/// The maximal number of ranges of boot memory with a node.
const MAX_NODE_RANGES: usize = 128;

/// An entry of the MCFG table.
#[derive(Clone, Copy)]
pub(crate) struct EcamArea {
    /// The address of bus 0, even if bus 0 is not in the area.
    pub(crate) phys_addr: u64,
    /// The first bus in the area.
    pub(crate) first_bus: u8,
    /// The last bus in the area.
    pub(crate) last_bus: u8,
}

/// The reason why the tables were refused.
pub(crate) enum TableError {
    /// A table is damaged.
    Acpi(AcpiError),
    /// There are more ranges of boot memory than [`MAX_NODE_RANGES`].
    NodeRanges,
}

impl Firmware {
    /// Reads the tables that the root pointer at `rsdp` leads to. If the loader passed no root
    /// pointer, searches the BIOS area for one. `ram` is the RAM in the loader's map.
    pub(crate) fn read(
        rsdp: Option<u64>,
        memory: &mut AddressSpace,
        ram: impl Iterator<Item = PfnRange> + Clone,
    ) -> Result<Self, TableError> {
        let handler = TableMapper(&RefCell::new(memory));
        let tables = match rsdp.and_then(|rsdp| usize::try_from(rsdp).ok()) {
            // SAFETY: the loader passed `rsdp` as the address of the root pointer, and the crate
            // checks the pointer's checksum.
            Some(rsdp) => unsafe { AcpiTables::from_rsdp(handler, rsdp) },
            // SAFETY: the kernel runs on PCs only. On a PC the searched range is ROM or RAM, and
            // reading it has no effect.
            None => unsafe { AcpiTables::search_for_rsdp_bios(handler) },
        };
        let tables = match tables {
            Ok(tables) => tables,
            // A VMM may have no tables.
            Err(AcpiError::NoValidRsdp) => {
                return Ok(Firmware::without_tables());
            }
            Err(error) => return Err(TableError::Acpi(error)),
        };
        let cpus = match if_present(tables.find_table::<Madt>())? {
            Some(madt) => Cpus::of_madt(&madt),
            None => Cpus::single(),
        };
        let ecam = if_present(tables.find_table::<Mcfg>())?.and_then(|mcfg| ecam_area(&mcfg));
        let mut firmware = Firmware { cpus, ecam, ..Firmware::without_tables() };
        if let Some(fadt) = if_present(tables.find_table::<Fadt>())? {
            firmware.gpe_port = fadt.gpe0_block().ok().flatten().and_then(port_of);
            firmware.pm_timer_port = fadt.pm_timer_block().ok().flatten().and_then(port_of);
        }
        if let Some(nfit) = if_present(tables.find_table::<Nfit>())? {
            firmware.persistent = PersistentRanges::read(structures(&nfit), ram);
        }
        if let Some(srat) = if_present(tables.find_table::<Srat>())? {
            firmware.record_nodes(&srat)?;
        }
        Ok(firmware)
    }

    /// Returns the values for a machine without ACPI tables.
    fn without_tables() -> Self {
        Firmware {
            cpus: Cpus::single(),
            ecam: None,
            gpe_port: None,
            pm_timer_port: None,
            nodes: MemoryNodes::empty(),
            hot_pluggable: Bytes::ZERO,
            persistent: Ok(PersistentRanges::NONE),
        }
    }

    fn record_nodes(
        &mut self,
        srat: &PhysicalMapping<TableMapper<'_, '_>, Srat>,
    ) -> Result<(), TableError> {
        for memory in memory_affinities(structures(srat)) {
            if memory.hot_pluggable {
                self.hot_pluggable = self.hot_pluggable + memory.range.len;
                continue;
            }
            let node = NodeId(memory.domain);
            let MemoryNodes { ranges, len } = &mut self.nodes;
            *ranges.get_mut(*len).ok_or(TableError::NodeRanges)? = (memory.range, node);
            *len += 1;
        }
        Ok(())
    }
}

impl MemoryNodes {
    fn empty() -> Self {
        let empty_range = BootRange { start: 0, len: Bytes::ZERO };
        MemoryNodes { ranges: [(empty_range, NodeId::ZERO); MAX_NODE_RANGES], len: 0 }
    }

    /// Returns the ranges with their nodes, as the engine's boot map needs them.
    pub(crate) fn as_slice(&self) -> &[(BootRange, NodeId)] {
        &self.ranges[..self.len]
    }
}

/// The fixed part of the System Resource Affinity Table. A list of structures follows it.
#[repr(C, packed)]
struct Srat {
    header: SdtHeader,
    _reserved: [u8; 12],
}

// SAFETY: every table with the signature SRAT begins with an `SdtHeader`.
unsafe impl AcpiTable for Srat {
    const SIGNATURE: Signature = Signature::SRAT;

    fn header(&self) -> &SdtHeader {
        &self.header
    }
}

/// The fixed part of the NVDIMM Firmware Interface Table. A list of structures follows it.
#[repr(C, packed)]
struct Nfit {
    header: SdtHeader,
    _reserved: [u8; 4],
}

// SAFETY: every table with the signature NFIT begins with an `SdtHeader`.
unsafe impl AcpiTable for Nfit {
    const SIGNATURE: Signature = Signature::NFIT;

    fn header(&self) -> &SdtHeader {
        &self.header
    }
}

/// Returns the bytes of a table that follow the fields of `T`.
fn structures<'t, T: AcpiTable>(table: &'t PhysicalMapping<TableMapper<'_, '_>, T>) -> &'t [u8] {
    let len = to_len(&*table.get()).saturating_sub(size_of::<T>());
    let structures = table.virtual_start().as_ptr().wrapping_add(1).cast::<u8>();
    // SAFETY: the crate has mapped and checked the whole table, and `structures` reaches from the
    // end of `T` to the end of the table.
    unsafe { core::slice::from_raw_parts(structures, len) }
}

impl Cpus {
    fn single() -> Self {
        Cpus { count: 1, ids: [0; MAX_CPUS], len: 0 }
    }

    fn of_madt(madt: &PhysicalMapping<TableMapper<'_, '_>, Madt>) -> Self {
        const ENABLED: u32 = 1;
        let mut cpus = Cpus { count: 0, ..Cpus::single() };
        for entry in madt.get().entries() {
            let (flags, apic_id) = match entry {
                MadtEntry::LocalApic(cpu) => (cpu.flags, Some(cpu.apic_id)),
                MadtEntry::LocalX2Apic(cpu) => (cpu.flags, None),
                _ => continue,
            };
            if flags & ENABLED == 0 {
                continue;
            }
            cpus.count = cpus.count.saturating_add(1);
            if let (Some(id), Some(entry)) = (apic_id, cpus.ids.get_mut(cpus.len)) {
                *entry = id;
                cpus.len += 1;
            }
        }
        cpus
    }

    /// Returns the IDs of the processors' local APICs, at most [`MAX_CPUS`].
    pub(crate) fn apic_ids(&self) -> &[u8] {
        &self.ids[..self.len]
    }
}

fn ecam_area(mcfg: &Mcfg) -> Option<EcamArea> {
    // `Mcfg::entries` subtracts this size from the length without a check.
    if to_len(mcfg) < size_of::<Mcfg>() {
        return None;
    }
    let segment_0 = mcfg.entries().iter().find(|entry| entry.pci_segment_group == 0)?;
    Some(EcamArea {
        phys_addr: segment_0.base_address,
        first_bus: segment_0.bus_number_start,
        last_bus: segment_0.bus_number_end,
    })
}

/// Returns the first port of a block of registers, or `None` if they are not I/O ports.
fn port_of(block: GenericAddress) -> Option<u16> {
    let is_port = block.address_space == acpi::address::AddressSpace::SystemIo;
    u16::try_from(block.address).ok().filter(|&port| is_port && port != 0)
}

fn to_len(table: &impl AcpiTable) -> usize {
    table.header().length as usize
}

fn if_present<T>(table: Result<T, AcpiError>) -> Result<Option<T>, TableError> {
    match table {
        Ok(table) => Ok(Some(table)),
        Err(AcpiError::TableMissing(_)) => Ok(None),
        Err(error) => Err(TableError::Acpi(error)),
    }
}

/// Maps ACPI tables for the `acpi` crate. They stay mapped.
#[derive(Clone)]
struct TableMapper<'a, 'm>(&'a RefCell<&'m mut AddressSpace>);

impl AcpiHandler for TableMapper<'_, '_> {
    unsafe fn map_physical_region<T>(&self, addr: usize, size: usize) -> PhysicalMapping<Self, T> {
        // Real tables have a few KiB. A table with a greater length is damaged, and is not read.
        const MAX_BYTES: usize = 1 << 20;
        if size > MAX_BYTES {
            give_up(format_args!("ACPI: a table of {size} bytes at {addr:#x}"));
        }
        match self.0.borrow_mut().map_bytes(addr as u64, size as u64, Caching::WriteBack) {
            // SAFETY: `map_bytes` has mapped the table, and nothing writes to it.
            Ok(start) => unsafe {
                PhysicalMapping::new(addr, start.cast(), size, size, self.clone())
            },
            // `map_physical_region` cannot return an error, so end the run.
            Err(error) => give_up(format_args!("ACPI: {error}")),
        }
    }

    fn unmap_physical_region<T>(_: &PhysicalMapping<Self, T>) {}
}

impl fmt::Display for TableError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            TableError::Acpi(error) => write!(f, "{error:?}"),
            TableError::NodeRanges => {
                write!(f, "more than {MAX_NODE_RANGES} ranges of boot memory with nodes")
            }
        }
    }
}
