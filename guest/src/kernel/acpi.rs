//! What ACPI's static tables tell: the processors, and where PCI's configuration space is.

use super::give_up;
use super::memory::AddressSpace;
use acpi::madt::{Madt, MadtEntry};
use acpi::mcfg::Mcfg;
use acpi::{AcpiError, AcpiHandler, AcpiTable, AcpiTables, PhysicalMapping};
use core::cell::RefCell;
use core::fmt;
use hotmem_guest::direct_map::Caching;

/// What the firmware's tables say.
pub(crate) struct Firmware {
    /// Enabled processors; 1 if nobody says.
    pub(crate) cpus: u32,
    /// Memory-mapped configuration space of PCI segment 0, if there is any.
    pub(crate) ecam: Option<EcamArea>,
}

/// An entry of the MCFG table.
#[derive(Clone, Copy)]
pub(crate) struct EcamArea {
    /// Where bus 0 is, or would be.
    pub(crate) phys_addr: u64,
    /// First bus in it.
    pub(crate) first_bus: u8,
    /// Last bus in it.
    pub(crate) last_bus: u8,
}

/// Why the tables were refused.
pub(crate) struct Refused(AcpiError);

impl Firmware {
    /// Reads the tables from the root pointer, which is searched for if the loader gave none.
    pub(crate) fn read(rsdp: Option<u64>, memory: &mut AddressSpace) -> Result<Self, Refused> {
        let handler = Handler(&RefCell::new(memory));
        let tables = match rsdp.and_then(|rsdp| usize::try_from(rsdp).ok()) {
            // SAFETY: the loader says that a root pointer is there, and the crate checks it.
            Some(rsdp) => unsafe { AcpiTables::from_rsdp(handler, rsdp) },
            // SAFETY: the kernel runs on PCs only, where this range is ROM, or RAM without effect.
            None => unsafe { AcpiTables::search_for_rsdp_bios(handler) },
        };
        let tables = match tables {
            Ok(tables) => tables,
            // A VMM need not have any.
            Err(AcpiError::NoValidRsdp) => return Ok(Firmware { cpus: 1, ecam: None }),
            Err(error) => return Err(Refused(error)),
        };
        let cpus = match optional(tables.find_table::<Madt>())? {
            Some(madt) => u32::try_from(enabled_cpus(&madt)).unwrap_or(u32::MAX),
            None => 1,
        };
        let ecam = optional(tables.find_table::<Mcfg>())?.and_then(|mcfg| ecam_area(&mcfg));
        Ok(Firmware { cpus, ecam })
    }
}

fn enabled_cpus(madt: &PhysicalMapping<Handler<'_, '_>, Madt>) -> usize {
    const ENABLED: u32 = 1;
    let is_cpu = |entry: &MadtEntry<'_>| match entry {
        MadtEntry::LocalApic(cpu) => cpu.flags & ENABLED != 0,
        MadtEntry::LocalX2Apic(cpu) => cpu.flags & ENABLED != 0,
        _ => false,
    };
    madt.get().entries().filter(is_cpu).count()
}

fn ecam_area(mcfg: &Mcfg) -> Option<EcamArea> {
    // The crate subtracts without a check.
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

fn to_len(table: &impl AcpiTable) -> usize {
    table.header().length as usize
}

fn optional<T>(table: Result<T, AcpiError>) -> Result<Option<T>, Refused> {
    match table {
        Ok(table) => Ok(Some(table)),
        Err(AcpiError::TableMissing(_)) => Ok(None),
        Err(error) => Err(Refused(error)),
    }
}

/// Lets the crate reach the tables, which stay mapped.
#[derive(Clone)]
struct Handler<'a, 'm>(&'a RefCell<&'m mut AddressSpace>);

impl AcpiHandler for Handler<'_, '_> {
    unsafe fn map_physical_region<T>(&self, addr: usize, size: usize) -> PhysicalMapping<Self, T> {
        // Real tables are a few KiB; a length beyond this is rubbish that must not be walked.
        const MAX_BYTES: usize = 1 << 20;
        if size > MAX_BYTES {
            give_up(format_args!("ACPI: a table of {size} bytes at {addr:#x}"));
        }
        match self.0.borrow_mut().reach(addr as u64, size as u64, Caching::WriteBack) {
            // SAFETY: the bytes are mapped, and nobody writes to them.
            Ok(start) => unsafe {
                PhysicalMapping::new(addr, start.cast(), size, size, self.clone())
            },
            // The trait leaves no other way to refuse.
            Err(error) => give_up(format_args!("ACPI: {error}")),
        }
    }

    fn unmap_physical_region<T>(_: &PhysicalMapping<Self, T>) {}
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.0)
    }
}
