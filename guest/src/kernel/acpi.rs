//! Reads ACPI's static tables: the processors, the nodes of memory, and PCI's configuration space.

use super::fatal::give_up;
use super::limits::MAX_CPUS;
use super::memory::AddressSpace;
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

/// The contents of the firmware's tables.
pub(crate) struct Firmware {
    /// Enabled processors.
    pub(crate) cpus: Cpus,
    /// The memory-mapped configuration space of PCI segment 0, if there is one.
    pub(crate) ecam: Option<EcamArea>,
    /// The port of the status of general-purpose events.
    pub(crate) events: Option<u16>,
    /// The nodes of boot memory; node 0 for memory that no table mentions.
    pub(crate) nodes: MemoryNodes,
    /// The total size of all hot-pluggable ranges.
    pub(crate) hot_pluggable: Bytes,
    /// Persistent memory. An error matters only to a run that uses it.
    pub(crate) persistent: Result<PersistentRanges, NfitError>,
}

/// Enabled processors.
pub(crate) struct Cpus {
    /// The number of processors; 1 if there is no table.
    pub(crate) count: u32,
    room: [u8; MAX_CPUS],
    used: usize,
}

/// The nodes of boot memory.
pub(crate) struct MemoryNodes {
    room: [(BootRange, NodeId); MAX_NODE_RANGES],
    used: usize,
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
pub(crate) enum Refused {
    /// They are damaged.
    Acpi(AcpiError),
    /// There are more ranges of boot memory than [`MAX_NODE_RANGES`].
    NodeRanges,
}

impl Firmware {
    /// Reads the tables from the root pointer, which is searched if the loader passed none. `ram`
    /// is the RAM in the loader's map.
    pub(crate) fn read(
        rsdp: Option<u64>,
        memory: &mut AddressSpace,
        ram: impl Iterator<Item = PfnRange> + Clone,
    ) -> Result<Self, Refused> {
        let handler = Handler(&RefCell::new(memory));
        let tables = match rsdp.and_then(|rsdp| usize::try_from(rsdp).ok()) {
            // SAFETY: the loader passed the address of the root pointer, and the crate checks it.
            Some(rsdp) => unsafe { AcpiTables::from_rsdp(handler, rsdp) },
            // SAFETY: the kernel runs on PCs only, where this range is ROM, or RAM without effect.
            None => unsafe { AcpiTables::search_for_rsdp_bios(handler) },
        };
        let tables = match tables {
            Ok(tables) => tables,
            // A VMM may have no tables.
            Err(AcpiError::NoValidRsdp) => {
                return Ok(Firmware::none());
            }
            Err(error) => return Err(Refused::Acpi(error)),
        };
        let cpus = match optional(tables.find_table::<Madt>())? {
            Some(madt) => Cpus::enabled(&madt),
            None => Cpus::one(),
        };
        let ecam = optional(tables.find_table::<Mcfg>())?.and_then(|mcfg| ecam_area(&mcfg));
        let events = optional(tables.find_table::<Fadt>())?.and_then(|fadt| event_port(&fadt));
        let mut firmware = Firmware { cpus, ecam, events, ..Firmware::none() };
        if let Some(nfit) = optional(tables.find_table::<Nfit>())? {
            firmware.persistent = PersistentRanges::read(structures(&nfit), ram);
        }
        if let Some(srat) = optional(tables.find_table::<Srat>())? {
            firmware.place(&srat)?;
        }
        Ok(firmware)
    }

    /// Returns the contents for a machine without tables.
    fn none() -> Self {
        Firmware {
            cpus: Cpus::one(),
            ecam: None,
            events: None,
            nodes: MemoryNodes::none(),
            hot_pluggable: Bytes::ZERO,
            persistent: Ok(PersistentRanges::NONE),
        }
    }

    fn place(&mut self, srat: &PhysicalMapping<Handler<'_, '_>, Srat>) -> Result<(), Refused> {
        for memory in memory_affinities(structures(srat)) {
            if memory.hot_pluggable {
                self.hot_pluggable = self.hot_pluggable + memory.range.len;
                continue;
            }
            let node = NodeId(memory.domain);
            let MemoryNodes { room, used } = &mut self.nodes;
            *room.get_mut(*used).ok_or(Refused::NodeRanges)? = (memory.range, node);
            *used += 1;
        }
        Ok(())
    }
}

impl MemoryNodes {
    fn none() -> Self {
        let nothing = BootRange { start: 0, len: Bytes::ZERO };
        MemoryNodes { room: [(nothing, NodeId::ZERO); MAX_NODE_RANGES], used: 0 }
    }

    /// Returns the ranges with their nodes, in the form for the engine.
    pub(crate) fn as_slice(&self) -> &[(BootRange, NodeId)] {
        &self.room[..self.used]
    }
}

/// The System Resource Affinity Table, up to its structures.
#[repr(C, packed)]
struct Srat {
    header: SdtHeader,
    _reserved: [u8; 12],
}

// SAFETY: every table with this signature begins with this header.
unsafe impl AcpiTable for Srat {
    const SIGNATURE: Signature = Signature::SRAT;

    fn header(&self) -> &SdtHeader {
        &self.header
    }
}

/// The NVDIMM Firmware Interface Table, up to its structures.
#[repr(C, packed)]
struct Nfit {
    header: SdtHeader,
    _reserved: [u8; 4],
}

// SAFETY: as above.
unsafe impl AcpiTable for Nfit {
    const SIGNATURE: Signature = Signature::NFIT;

    fn header(&self) -> &SdtHeader {
        &self.header
    }
}

/// Returns the structures after a table's own fields.
fn structures<'t, T: AcpiTable>(table: &'t PhysicalMapping<Handler<'_, '_>, T>) -> &'t [u8] {
    let len = to_len(&*table.get()).saturating_sub(size_of::<T>());
    let structures = table.virtual_start().as_ptr().wrapping_add(1).cast::<u8>();
    // SAFETY: the crate has mapped and checked the whole table, and the structures are its end.
    unsafe { core::slice::from_raw_parts(structures, len) }
}

impl Cpus {
    fn one() -> Self {
        Cpus { count: 1, room: [0; MAX_CPUS], used: 0 }
    }

    fn enabled(madt: &PhysicalMapping<Handler<'_, '_>, Madt>) -> Self {
        const ENABLED: u32 = 1;
        let mut cpus = Cpus { count: 0, ..Cpus::one() };
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
            if let (Some(id), Some(entry)) = (apic_id, cpus.room.get_mut(cpus.used)) {
                *entry = id;
                cpus.used += 1;
            }
        }
        cpus
    }

    /// Returns the IDs of their local APICs, at most [`MAX_CPUS`].
    pub(crate) fn apic_ids(&self) -> &[u8] {
        &self.room[..self.used]
    }
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

fn event_port(fadt: &Fadt) -> Option<u16> {
    let block = fadt.gpe0_block().ok()??;
    let is_port = block.address_space == acpi::address::AddressSpace::SystemIo;
    u16::try_from(block.address).ok().filter(|_| is_port)
}

fn to_len(table: &impl AcpiTable) -> usize {
    table.header().length as usize
}

fn optional<T>(table: Result<T, AcpiError>) -> Result<Option<T>, Refused> {
    match table {
        Ok(table) => Ok(Some(table)),
        Err(AcpiError::TableMissing(_)) => Ok(None),
        Err(error) => Err(Refused::Acpi(error)),
    }
}

/// Maps the tables for the crate. They stay mapped.
#[derive(Clone)]
struct Handler<'a, 'm>(&'a RefCell<&'m mut AddressSpace>);

impl AcpiHandler for Handler<'_, '_> {
    unsafe fn map_physical_region<T>(&self, addr: usize, size: usize) -> PhysicalMapping<Self, T> {
        // Real tables have a few KiB. A greater length is an error, and must not be read.
        const MAX_BYTES: usize = 1 << 20;
        if size > MAX_BYTES {
            give_up(format_args!("ACPI: a table of {size} bytes at {addr:#x}"));
        }
        match self.0.borrow_mut().reach(addr as u64, size as u64, Caching::WriteBack) {
            // SAFETY: the bytes are mapped, and nothing writes to them.
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
        match self {
            Refused::Acpi(error) => write!(f, "{error:?}"),
            Refused::NodeRanges => {
                write!(f, "more than {MAX_NODE_RANGES} ranges of boot memory with nodes")
            }
        }
    }
}
