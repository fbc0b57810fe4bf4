//! Reads a host bridge of PCI with memory-mapped configuration space (ECAM), as
//! `pci-host-ecam-generic` describes it.

use super::error::TreeError;
use super::node::{CellReader, Node};

/// A host bridge.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PciHost {
    /// The address of the configuration space of `first_bus`.
    pub config_space: u64,
    /// The first bus.
    pub first_bus: u8,
    /// The last bus that lies in the configuration space.
    pub last_bus: u8,
    /// The first address of the window for 32-bit memory BARs. It is the same address for the CPU and
    /// for devices.
    pub window_start: u32,
    /// The end of the window, or the last address below 4 GiB that is a multiple of 64 KiB.
    pub window_end: u32,
}

/// The configuration space of a bus.
const BUS_BYTES: u64 = 1 << 20;
/// The kind of an address on PCI, in bits 24 and 25 of its first cell (IEEE 1275, PCI bus binding).
const KIND_MASK: u64 = 3 << 24;
const MEMORY_32: u64 = 2 << 24;
/// The largest end of a window of addresses with 32 bits.
const MAX_END: u64 = 0xffff_0000;

impl PciHost {
    pub(super) fn read<'t>(node: &Node<'t>) -> Result<Self, TreeError<'t>> {
        let config_space = node.first_range()?;
        let [first_bus, wanted_last] = bus_range(node)?;
        let buses = (config_space.len / BUS_BYTES).min(u64::from(wanted_last - first_bus) + 1);
        let last = buses.checked_sub(1).and_then(|last| u8::try_from(last).ok());
        let (window_start, window_end) = window(node)?;
        Ok(PciHost {
            config_space: config_space.start,
            first_bus,
            last_bus: first_bus + last.ok_or(node.malformed("reg"))?,
            window_start,
            window_end,
        })
    }
}

/// Returns the first and the last bus.
fn bus_range<'t>(node: &Node<'t>) -> Result<[u8; 2], TreeError<'t>> {
    let Some(value) = node.property("bus-range")? else { return Ok([0, u8::MAX]) };
    let mut cells = CellReader::new(value);
    let mut bus = || u8::try_from(cells.number(1)?).ok();
    let buses = bus().zip(bus()).filter(|(first, last)| first <= last);
    buses.map(Into::into).ok_or(node.malformed("bus-range"))
}

/// Returns the largest window for 32-bit memory BARs; it is empty if there is none.
fn window<'t>(node: &Node<'t>) -> Result<(u32, u32), TreeError<'t>> {
    let cells = node.child_cells()?;
    if (cells.address, cells.size) != (3, 2) {
        return Err(node.malformed("#address-cells"));
    }
    let mut entries = CellReader::new(node.property("ranges")?.unwrap_or_default());
    let mut largest = (0, 0);
    while !entries.is_empty() {
        let entry = (|| {
            let (kind, bus) = (entries.number(1)?, entries.number(2)?);
            Some((kind, bus, entries.number(node.cells.address)?, entries.number(cells.size)?))
        })();
        let (kind, bus, start, len) = entry.ok_or(node.malformed("ranges"))?;
        let end = start.checked_add(len).ok_or(node.malformed("ranges"))?.min(MAX_END);
        if kind & KIND_MASK != MEMORY_32 || start >= end {
            continue;
        }
        if bus != start {
            return Err(TreeError::TranslatedWindow);
        }
        // Both are at most `MAX_END`.
        let window = (u32::try_from(start).unwrap_or(0), u32::try_from(end).unwrap_or(0));
        if window.1 - window.0 > largest.1 - largest.0 {
            largest = window;
        }
    }
    Ok(largest)
}
