//! Encodes the values that the device tree's properties have after a request.

use crate::property::{FLAG_ASSIGNED, LmbSet, Property, Version};
use crate::table::Table;

/// The new value of a property of the device tree. [`copy_to`](PropertyValue::copy_to) copies its
/// bytes. LMBs are in the order of their addresses.
#[derive(Clone, Copy, Debug)]
pub struct PropertyValue<'t> {
    table: &'t Table<'t>,
    /// Whether this is the value of `ibm,associativity-lookup-arrays`.
    is_lookup_arrays: bool,
    /// Whether this value lists the LMBs of the open request as assigned.
    is_assigning: bool,
}

impl Table<'_> {
    /// Returns the new value of the property from which the table was made: `ibm,dynamic-memory` or
    /// `ibm,dynamic-memory-v2`.
    #[must_use]
    pub fn dynamic_memory(&self) -> PropertyValue<'_> {
        PropertyValue { table: self, is_lookup_arrays: false, is_assigning: true }
    }

    /// Returns the value that the property will have when the open request is done. The LMBs that
    /// the request has taken will be assigned if `assigning`, and not assigned otherwise.
    pub(crate) fn dynamic_memory_after(&self, assigning: bool) -> PropertyValue<'_> {
        PropertyValue { table: self, is_lookup_arrays: false, is_assigning: assigning }
    }

    /// Returns the value of `ibm,associativity-lookup-arrays`.
    #[must_use]
    pub fn lookup_arrays(&self) -> PropertyValue<'_> {
        PropertyValue { table: self, is_lookup_arrays: true, is_assigning: true }
    }

    /// Calls `f` for each set of neighbouring LMBs with equal fields. LMBs that the open request
    /// has taken count as assigned if `assigning`, and as not assigned otherwise.
    fn for_each_set(&self, assigning: bool, mut f: impl FnMut(LmbSet)) {
        let mut set: Option<LmbSet> = None;
        for run in self.runs {
            let mut position = run.first;
            while position < run.end() {
                let (group, bit) = self.group_of(position);
                let assigned = match assigning {
                    true => group.assigned | group.taken,
                    false => group.assigned & !group.taken,
                };
                let assigned_flag = if assigned >> bit & 1 != 0 { FLAG_ASSIGNED } else { 0 };
                // Compare the fields of 64 LMBs at once, which takes a few vector instructions.
                let is_uniform = bit == 0
                    && run.end() - position >= u64::BITS
                    && (assigned == 0 || assigned == u64::MAX)
                    && group.taken == 0
                    && group.flags.iter().all(|&flags| flags == group.flags[0])
                    && group.aa_index.iter().all(|&row| row == group.aa_index[0]);
                let nth = position - run.first;
                let step = if run.set.has_connectors() { nth } else { 0 };
                let next = LmbSet {
                    lmbs: if is_uniform { u64::BITS } else { 1 },
                    address: run.set.address + u64::from(nth) * self.lmb_size.bytes().0,
                    drc_index: run.set.drc_index + step,
                    reserved: run.set.reserved,
                    aa_index: group.row(bit),
                    flags: group.flags[bit] | assigned_flag,
                };
                position += next.lmbs;
                match &mut set {
                    Some(set) if set.is_continued_by(&next, self.lmb_size) => set.lmbs += next.lmbs,
                    _ => {
                        if let Some(complete_set) = set.replace(next) {
                            f(complete_set);
                        }
                    }
                }
            }
        }
        if let Some(complete_set) = set {
            f(complete_set);
        }
    }
}

impl PropertyValue<'_> {
    /// Returns the property to which the value belongs.
    #[must_use]
    pub fn property(&self) -> Property {
        if self.is_lookup_arrays { Property::LookupArrays } else { self.table.version.property() }
    }

    /// Returns the value's length in bytes.
    #[must_use]
    #[allow(clippy::len_without_is_empty, reason = "a property is never empty")]
    pub fn len(&self) -> usize {
        let table = self.table;
        if self.is_lookup_arrays {
            return 8 + table.rows.cells().len() * 4;
        }
        let mut entries = 0;
        match table.version {
            Version::V1 => entries = table.lmbs as usize,
            Version::V2 => table.for_each_set(self.is_assigning, |_| entries += 1),
        }
        4 + entries * 24
    }

    /// Writes the value to `buffer`. Returns the number of bytes written. Cells that do not fit in
    /// `buffer` are left out.
    pub fn copy_to(&self, buffer: &mut [u8]) -> usize {
        let table = self.table;
        let mut cells = Writer { buffer, position: 0 };
        if self.is_lookup_arrays {
            let (rows, columns) = table.rows.dimensions();
            cells.put(&[rows, columns]);
            cells.put(table.rows.cells());
            return cells.position;
        }
        match table.version {
            Version::V1 => {
                cells.put(&[table.lmbs]);
                table.for_each_set(self.is_assigning, |set| {
                    for nth in 0..set.lmbs {
                        let step = if set.has_connectors() { nth } else { 0 };
                        let address = set.address + u64::from(nth) * table.lmb_size.bytes().0;
                        let [high, low] = pair(address);
                        let index = set.drc_index + step;
                        cells.put(&[high, low, index, set.reserved, set.aa_index, set.flags]);
                    }
                });
            }
            Version::V2 => {
                // The number of entries is known only at the end: reserve its cell.
                let mut entries = 0;
                cells.put(&[0]);
                table.for_each_set(self.is_assigning, |set| {
                    let [high, low] = pair(set.address);
                    cells.put(&[set.lmbs, high, low, set.drc_index, set.aa_index, set.flags]);
                    entries += 1;
                });
                Writer { buffer: cells.buffer, position: 0 }.put(&[entries]);
            }
        }
        cells.position
    }
}

/// Splits a value into its high and its low cell.
#[allow(clippy::cast_possible_truncation, reason = "cut in two")]
const fn pair(value: u64) -> [u32; 2] {
    [(value >> 32) as u32, value as u32]
}

struct Writer<'o> {
    buffer: &'o mut [u8],
    position: usize,
}

impl Writer<'_> {
    fn put(&mut self, cells: &[u32]) {
        for cell in cells {
            if let Some(place) =
                self.buffer.get_mut(self.position..).and_then(|o| o.first_chunk_mut::<4>())
            {
                *place = cell.to_be_bytes();
                self.position += 4;
            }
        }
    }
}
