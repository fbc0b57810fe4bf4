//! Reads ACPI's CXL Early Discovery Table. A faulty structure is refused, and does not affect others.

use super::MAX_CXL;
use crate::fixed_list::FixedList;
use core::fmt;
use hotmem::PfnRange;
use hotmem_cxl::Platform;
use hotmem_cxl::PlatformError;
use hotmem_cxl::cedt::{self, CedtError};

/// The maximal number of ranges of RAM with which windows are compared.
const MAX_RAM: usize = 64;

/// The bridges and windows of the table, and what is wrong with others.
#[derive(Clone, Debug)]
pub struct CxlTable {
    /// The bridges and windows.
    pub platform: Platform<MAX_CXL>,
    /// What is wrong with structures: the first faults.
    pub faults: FixedList<TableFault, MAX_CXL>,
}

/// What is wrong with a structure.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TableFault {
    /// The structure is malformed.
    Structure(CedtError),
    /// The structure contradicts another one, or RAM.
    Platform(PlatformError),
    /// There are more ranges of RAM than the kernel has room for, so windows cannot be compared with all of it.
    TooMuchRam,
}

impl Default for CxlTable {
    fn default() -> Self {
        let faults = FixedList::empty(TableFault::TooMuchRam);
        CxlTable { platform: Platform::default(), faults }
    }
}

impl CxlTable {
    /// Reads the table's structures, which begin at offset 36, and adds them. `ram` is the RAM in the
    /// memory map.
    #[inline(never)]
    pub fn add(&mut self, structures: &[u8], ram: impl Iterator<Item = PfnRange>) {
        let mut ranges = FixedList::<_, MAX_RAM>::empty(PfnRange::EMPTY);
        for range in ram {
            if ranges.push(range).is_err() {
                return self.refuse(TableFault::TooMuchRam);
            }
        }
        for structure in cedt::structures(structures) {
            let added = structure.map_err(TableFault::Structure).and_then(|structure| {
                self.platform.add(structure, &ranges).map_err(TableFault::Platform)
            });
            if let Err(fault) = added {
                self.refuse(fault);
            }
        }
    }

    fn refuse(&mut self, fault: TableFault) {
        // Faults after the first ones are not reported.
        let _ = self.faults.push(fault);
    }
}

impl core::error::Error for TableFault {}

impl fmt::Display for TableFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            TableFault::Structure(error) => error.fmt(f),
            TableFault::Platform(error) => write!(f, "CEDT: {error}"),
            TableFault::TooMuchRam => {
                write!(f, "CEDT: windows cannot be compared with more than {MAX_RAM} ranges of RAM")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hotmem::Bytes;

    const GIB: u64 = 1 << 30;

    fn window(start: u64, len: u64) -> Vec<u8> {
        let mut raw = vec![1, 0, 40, 0, 0, 0, 0, 0];
        raw.extend([start, len].map(u64::to_le_bytes).concat());
        raw.extend([0, 0, 0, 0, 0, 0, 0, 0, 0xf, 0, 0, 0, 12, 0, 0, 0]);
        raw
    }

    fn ram(len: u64) -> PfnRange {
        PfnRange::from_bytes(0, Bytes(len)).unwrap()
    }

    fn read(structures: &[u8], ram: impl Iterator<Item = PfnRange>) -> CxlTable {
        let mut table = CxlTable::default();
        table.add(structures, ram);
        table
    }

    #[test]
    fn a_window_over_ram_is_refused_and_others_are_used() {
        let structures = [window(GIB, GIB), window(4 * GIB, GIB)].concat();
        let table = read(&structures, [ram(2 * GIB)].into_iter());
        let starts: Vec<_> =
            table.platform.windows().map(|w| w.range.start().phys_addr()).collect();
        assert_eq!(starts, [4 * GIB]);
        let [TableFault::Platform(PlatformError::OverlapsRam { .. })] = *table.faults else {
            panic!("{:?}", table.faults)
        };
    }

    #[test]
    fn a_malformed_structure_is_a_fault() {
        let structures = [window(4 * GIB, 1), window(8 * GIB, GIB), vec![1, 0, 99, 0]].concat();
        let table = read(&structures, [].into_iter());
        assert_eq!(table.platform.windows().count(), 1);
        assert!(table.faults.iter().all(|fault| matches!(fault, TableFault::Structure(_))));
        assert_eq!(table.faults.len(), 2);
    }

    #[test]
    fn too_many_faults_and_too_much_ram_are_no_panic() {
        let structures = vec![window(4 * GIB, 1); 100].concat();
        let table = read(&structures, [].into_iter());
        assert_eq!(table.faults.len(), MAX_CXL);
        let table = read(&structures, vec![ram(GIB); MAX_RAM + 1].into_iter());
        assert_eq!(*table.faults, [TableFault::TooMuchRam]);
    }
}
