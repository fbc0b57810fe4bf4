//! Reads ACPI's static tables: the processors, the nodes of memory, and PCI's configuration space.

use super::fatal::give_up;
use super::firmware::{Cpus, EcamArea, Firmware, MAX_NODE_RANGES};
use super::general_events::{GeneralEvents, port_of};
use super::memory;
use super::slot_region::{SlotRegion, SlotsError};
use acpi::fadt::Fadt;
use acpi::madt::{Madt, MadtEntry};
use acpi::mcfg::Mcfg;
use acpi::sdt::{SdtHeader, Signature};
use acpi::{AcpiError, AcpiHandler, AcpiTable, AcpiTables, AmlTable, PhysicalMapping};
use core::cell::RefCell;
use core::fmt;
use hotmem::{BootRange, NodeId, PfnRange};
use hotmem_acpi::srat::memory_affinities;
use hotmem_directmap::Caching;
use hotmem_guest::cxl::CxlTable;
use hotmem_guest::nfit::PersistentRanges;
use hotmem_guest::to_usize;

/// The reason why the tables were refused.
pub(crate) enum TableError {
    /// A table is damaged.
    Acpi(AcpiError),
    /// There are more ranges of boot memory than [`MAX_NODE_RANGES`].
    NodeRanges,
}

impl Firmware {
    /// Adds what the tables say that the root pointer at `rsdp` leads to. If the loader passed no root
    /// pointer, searches the BIOS area for one. `ram` is the RAM in the loader's map.
    #[inline(never)]
    pub(crate) fn add_acpi(
        &mut self,
        rsdp: Option<u64>,
        memory: &mut memory::AddressSpace,
        ram: impl Iterator<Item = PfnRange> + Clone,
    ) -> Result<(), TableError> {
        let handler = TableMapper(&RefCell::new(memory));
        let tables = match rsdp.and_then(|rsdp| usize::try_from(rsdp).ok()) {
            // SAFETY: the loader passed `rsdp` as the address of the root pointer, and the crate
            // checks the pointer's checksum.
            Some(rsdp) => unsafe { AcpiTables::from_rsdp(handler.clone(), rsdp) },
            // SAFETY: the kernel runs on PCs only. On a PC the searched range is ROM or RAM, and
            // reading it has no effect.
            None => unsafe { AcpiTables::search_for_rsdp_bios(handler.clone()) },
        };
        let tables = match tables {
            Ok(tables) => tables,
            // A VMM may have no tables.
            Err(AcpiError::NoValidRsdp) => return Ok(()),
            Err(error) => return Err(TableError::Acpi(error)),
        };
        if let Some(madt) = if_present(tables.find_table::<Madt>())? {
            self.cpus = cpus_of(&madt);
        }
        self.ecam = if_present(tables.find_table::<Mcfg>())?.and_then(|mcfg| ecam_area(&mcfg));
        let fadt = if_present(tables.find_table::<Fadt>())?;
        self.events = fadt.as_ref().and_then(|fadt| GeneralEvents::of_fadt(fadt));
        self.slots = match &fadt {
            Some(_) => {
                if_present(tables.dsdt())?.map_or(Ok(None), |dsdt| slots_of(&handler, &dsdt))
            }
            None => Ok(None),
        };
        self.pm_timer_port =
            fadt.as_ref().and_then(|fadt| fadt.pm_timer_block().ok().flatten().and_then(port_of));
        if let Some(nfit) = if_present(tables.find_table::<Nfit>())? {
            self.persistent = PersistentRanges::read(structures(&nfit), ram.clone());
        }
        if let Some(cedt) = if_present(tables.find_table::<Cedt>())? {
            self.add_cedt(structures(&cedt), ram);
        }
        if let Some(srat) = if_present(tables.find_table::<Srat>())? {
            self.record_nodes(&srat)?;
        }
        Ok(())
    }

    // Not inlined: the table takes much of a stack.
    #[inline(never)]
    fn add_cedt(&mut self, structures: &[u8], ram: impl Iterator<Item = PfnRange>) {
        self.cxl.insert(CxlTable::default()).add(structures, ram);
    }

    fn record_nodes(
        &mut self,
        srat: &PhysicalMapping<TableMapper<'_, '_>, Srat>,
    ) -> Result<(), TableError> {
        for memory in memory_affinities(structures(srat)) {
            self.highest_domain = self.highest_domain.max(memory.domain);
            if memory.hot_pluggable {
                self.hot_pluggable = self.hot_pluggable + memory.len;
                continue;
            }
            let node = NodeId(memory.domain);
            let range = BootRange { start: memory.start, len: memory.len };
            self.nodes.push((range, node)).map_err(|_| TableError::NodeRanges)?;
        }
        Ok(())
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

/// The fixed part of the CXL Early Discovery Table. A list of structures follows it.
#[repr(C, packed)]
struct Cedt {
    header: SdtHeader,
}

// SAFETY: every table with the signature CEDT begins with an `SdtHeader`.
unsafe impl AcpiTable for Cedt {
    const SIGNATURE: Signature = Signature::CEDT;

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

/// Returns the enabled processors, with the IDs of their local APICs that have 8 bits.
fn cpus_of(madt: &PhysicalMapping<TableMapper<'_, '_>, Madt>) -> Cpus {
    const ENABLED: u32 = 1;
    let mut cpus = Cpus::NONE;
    for entry in madt.get().entries() {
        let (flags, apic_id) = match entry {
            MadtEntry::LocalApic(cpu) => (cpu.flags, Some(cpu.apic_id)),
            MadtEntry::LocalX2Apic(cpu) => (cpu.flags, None),
            _ => continue,
        };
        if flags & ENABLED == 0 {
            continue;
        }
        cpus.add(apic_id.map(u64::from));
    }
    cpus
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

/// Finds the registers of memory slots in the DSDT.
fn slots_of(
    handler: &TableMapper<'_, '_>,
    dsdt: &AmlTable,
) -> Result<Option<SlotRegion>, SlotsError> {
    let len = to_usize(u64::from(dsdt.length));
    // SAFETY: the mapping is only read, and stays.
    let mapping = unsafe { handler.map_physical_region::<u8>(dsdt.address, len) };
    // SAFETY: the handler has mapped `len` bytes, which nothing writes to.
    let aml = unsafe { core::slice::from_raw_parts(mapping.virtual_start().as_ptr(), len) };
    SlotRegion::of_dsdt(aml)
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
struct TableMapper<'a, 'm>(&'a RefCell<&'m mut memory::AddressSpace>);

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
