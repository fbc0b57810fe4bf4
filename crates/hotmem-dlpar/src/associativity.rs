//! Determines the node of an LMB. The LMB names a row of the lookup arrays, and the row's entry for
//! the primary domain is the node.

use crate::property::{Cells, FLAG_AI_INVALID, Property, PropertyError, check_len};
use hotmem::NodeId;

/// The form of associativity lists that the kernel and the platform negotiated in
/// `ibm,architecture-vec-5` (PAPR B.6.2.3, byte 5).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Affinity {
    /// The second reference point names the primary domain.
    Form0,
    /// The first reference point names the primary domain. Form 2 is read in the same way.
    #[default]
    Form1,
}

/// Converts associativity lists to nodes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Numa {
    /// The number, from 1, of the list entry that names the node. `None` if the machine has one
    /// node only.
    pub primary_domain: Option<u32>,
}

/// The checked value of `ibm,associativity-lookup-arrays`: rows of equal length.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct LookupArrays<'a> {
    pub(crate) rows: u32,
    pub(crate) columns: u32,
    pub(crate) cells: &'a [u8],
    value: &'a [u8],
}

/// The associativity index that names no row.
pub(crate) const NO_ROW: u32 = u32::MAX;
/// The domain number that means no domain.
const NO_DOMAIN: u32 = 0xffff;

impl Numa {
    /// A machine with one node only.
    pub const OFF: Numa = Numa { primary_domain: None };

    /// Reads `ibm,associativity-reference-points`. If the property is too short, there is no
    /// primary domain, and no list names a node.
    ///
    /// # Errors
    /// [`PropertyError`] if its length is not a multiple of a cell.
    pub fn parse(reference_points: &[u8], affinity: Affinity) -> Result<Numa, PropertyError> {
        let len = reference_points.len();
        check_len(Property::ReferencePoints, (len as u64).next_multiple_of(4), len)?;
        let (points, _) = reference_points.as_chunks::<4>();
        let point = match affinity {
            Affinity::Form0 => points.get(1),
            Affinity::Form1 => points.first(),
        };
        let primary_domain =
            point.map(|cell| u32::from_be_bytes(*cell)).filter(|&number| number != 0);
        Ok(Numa { primary_domain })
    }

    /// Returns the node of an LMB whose row in the lookup arrays is `row`, or `None` if the row names
    /// no node.
    pub(crate) fn node(&self, row: Option<&[u32]>) -> Option<NodeId> {
        let index = usize::try_from(self.primary_domain?.checked_sub(1)?).ok()?;
        row?.get(index).copied().filter(|&domain| domain != NO_DOMAIN).map(NodeId)
    }
}

impl<'a> LookupArrays<'a> {
    /// Reads the value of the property.
    ///
    /// # Errors
    /// [`PropertyError`].
    pub fn parse(value: &'a [u8]) -> Result<LookupArrays<'a>, PropertyError> {
        let mut cells = Cells(value);
        let (rows, columns) = (cells.next(), cells.next());
        let declared = u128::from(rows) * u128::from(columns) * 4 + 8;
        let declared = u64::try_from(declared).unwrap_or(u64::MAX);
        check_len(Property::LookupArrays, declared, value.len())?;
        Ok(LookupArrays { rows, columns, cells: cells.0, value })
    }

    /// Returns the property's value as it was read, or an empty slice if there was none.
    #[must_use]
    pub fn value(&self) -> &'a [u8] {
        self.value
    }

    /// Returns the number of lists.
    #[must_use]
    pub fn rows(&self) -> u32 {
        self.rows
    }

    /// Returns the number of entries of each list.
    #[must_use]
    pub fn columns(&self) -> u32 {
        self.columns
    }
}

/// The lookup arrays of a machine, which grow when a connector reports a new list.
#[derive(Debug)]
pub(crate) struct Rows<'a> {
    cells: &'a mut [u32],
    rows: u32,
    columns: u32,
    /// The number of rows in the device tree.
    written_rows: u32,
}

impl<'a> Rows<'a> {
    /// Copies `arrays` to `cells`, which must be long enough. Cells that remain are for new rows.
    pub(crate) fn new(arrays: LookupArrays<'_>, cells: &'a mut [u32]) -> Rows<'a> {
        let (values, _) = arrays.cells.as_chunks::<4>();
        for (cell, value) in cells.iter_mut().zip(values) {
            *cell = u32::from_be_bytes(*value);
        }
        Rows { cells, rows: arrays.rows, columns: arrays.columns, written_rows: arrays.rows }
    }

    pub(crate) fn dimensions(&self) -> (u32, u32) {
        (self.rows, self.columns)
    }

    /// Returns the cells in use, row by row.
    pub(crate) fn cells(&self) -> &[u32] {
        let used = u64::from(self.rows) * u64::from(self.columns);
        usize::try_from(used).ok().and_then(|used| self.cells.get(..used)).unwrap_or(&[])
    }

    /// Returns the list that an LMB's index and flags name.
    pub(crate) fn row(&self, aa_index: u32, flags: u32) -> Option<&[u32]> {
        if flags & FLAG_AI_INVALID != 0 || aa_index >= self.rows {
            return None;
        }
        let columns = usize::try_from(self.columns).ok()?;
        let start = usize::try_from(aa_index).ok()?.checked_mul(columns)?;
        self.cells.get(start..start.checked_add(columns)?)
    }

    /// Returns the number of the row that equals `list`. Adds a row if there is none. Returns
    /// `None` if the list has another length than the rows, if rows have no entries, or if there
    /// are no cells for another row.
    pub(crate) fn find_or_add(&mut self, list: &[u32], hint: u32) -> Option<u32> {
        let columns =
            usize::try_from(self.columns).ok().filter(|&columns| columns == list.len())?;
        // Without columns, rows take no cells, so the cells do not limit their number.
        if columns == 0 {
            return None;
        }
        if self.row(hint, 0) == Some(list) {
            return Some(hint);
        }
        if let Some(row) = (0..self.rows).find(|&row| self.row(row, 0) == Some(list)) {
            return Some(row);
        }
        let start = usize::try_from(self.rows).ok()?.checked_mul(columns)?;
        let end = start.checked_add(columns)?;
        self.cells.get_mut(start..end)?.copy_from_slice(list);
        let row = self.rows;
        self.rows = row.checked_add(1).filter(|&rows| rows != NO_ROW)?;
        Some(row)
    }

    /// Returns whether there are rows that the device tree does not have.
    pub(crate) fn has_grown(&self) -> bool {
        self.rows != self.written_rows
    }

    /// Records that the device tree contains all rows.
    pub(crate) fn note_written(&mut self) {
        self.written_rows = self.rows;
    }

    /// Drops the rows that the device tree does not contain.
    pub(crate) fn drop_new_rows(&mut self) {
        self.rows = self.written_rows;
    }
}
