//! What a table is made of: groups for what changes, runs for what never does.

use crate::associativity::{LookupArrays, NO_ROW};
use crate::property::{DrcIndex, DynamicMemory, LmbSet, LmbSize, PropertyError};
use core::fmt;
use hotmem::Pfn;

/// LMBs of a group: a bit each in one word.
pub(super) const GROUP: usize = 64;
/// The same, as positions count.
pub(super) const GROUP_LMBS: u32 = 64;

/// 64 LMBs: storage, to be lent as [`Group::EMPTY`].
#[derive(Clone, Debug)]
pub struct Group {
    /// The partition has it.
    pub(crate) assigned: u64,
    /// It can come and go: not reserved, and it has a connector.
    pub(crate) eligible: u64,
    /// The request in progress has it in its hands.
    pub(crate) taken: u64,
    /// The request took it offline, and would put it online again if it failed.
    pub(crate) online: u64,
    /// It was online for movable allocations then.
    pub(crate) movable: u64,
    /// It was online in two zones then.
    pub(crate) mixed: u64,
    /// Its connector is the partition's and its memory is not: it was acquired, the engine or the
    /// kernel did not take the memory, and the platform did not take the connector back.
    pub(crate) kept: u64,
    /// [`FLAG_ASSIGNED`] apart.
    pub(crate) flags: [u32; GROUP],
    pub(crate) aa_index: [u32; GROUP],
    /// The associativity index that its connector told the request.
    pub(crate) told: [u32; GROUP],
}

impl Group {
    /// No LMBs.
    pub const EMPTY: Group = Group {
        assigned: 0,
        eligible: 0,
        taken: 0,
        online: 0,
        movable: 0,
        mixed: 0,
        kept: 0,
        flags: [0; GROUP],
        aa_index: [NO_ROW; GROUP],
        told: [NO_ROW; GROUP],
    };

    /// Those that a request may add.
    pub(crate) fn addable(&self) -> u64 {
        self.eligible & !self.assigned & !self.taken
    }

    /// Those that a request may remove.
    pub(crate) fn removable(&self) -> u64 {
        self.eligible & self.assigned & !self.taken
    }
}

/// LMBs that follow each other in address and DRC index: storage, to be lent as [`Run::EMPTY`].
#[derive(Clone, Copy, Debug, Default)]
pub struct Run {
    pub(crate) set: LmbSet,
    /// Position of its first LMB.
    pub(crate) first: u32,
}

impl Run {
    /// No LMBs.
    pub const EMPTY: Run = Run {
        set: LmbSet { lmbs: 0, address: 0, drc_index: 0, reserved: 0, aa_index: 0, flags: 0 },
        first: 0,
    };

    /// Position behind its last LMB.
    pub(crate) fn end(&self) -> u32 {
        // Checked when the table was made.
        self.first + self.set.lmbs
    }
}

/// What a [`Table`](super::Table) is made of. Lent by the caller, and at least as long as
/// [`Needs`] says.
#[derive(Debug)]
pub struct Storage<'a> {
    /// A group for every 64 LMBs.
    pub groups: &'a mut [Group],
    /// A run for each set.
    pub runs: &'a mut [Run],
    /// An entry for each set.
    pub by_index: &'a mut [u32],
    /// The lookup arrays, with room for lists that connectors may tell.
    pub arrays: &'a mut [u32],
}

/// Lengths of the [`Storage`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Needs {
    /// Of `groups`.
    pub groups: usize,
    /// Of `runs` and of `by_index`.
    pub runs: usize,
    /// Of `arrays`, without room for more.
    pub arrays: usize,
}

impl Needs {
    /// What a table of this memory needs.
    #[must_use]
    pub fn of(memory: &DynamicMemory<'_>, arrays: &LookupArrays<'_>) -> Needs {
        let as_len = |count: u32| usize::try_from(count).unwrap_or(usize::MAX);
        Needs {
            groups: as_len(memory.lmbs().div_ceil(GROUP_LMBS)),
            runs: as_len(memory.set_count()),
            arrays: arrays.cells.len() / 4,
        }
    }
}

/// Why there is no table.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TableError {
    /// The property contradicts itself.
    Property(PropertyError),
    /// The storage is too short.
    Storage(Needs),
}

/// Brings runs into the order of their addresses and gives them positions.
pub(super) fn place(runs: &mut [Run], size: LmbSize) -> Result<(), TableError> {
    runs.sort_unstable_by_key(|run| run.set.address);
    let (mut end, mut position) = (Pfn::ZERO, 0_u32);
    for run in runs {
        let address = run.set.address;
        let overlap = TableError::Property(PropertyError::Overlap { address });
        let frames = run.set.frames(size).filter(|all| end <= all.start()).ok_or(overlap)?;
        end = frames.end();
        run.first = position;
        let too_many = TableError::Property(PropertyError::TooManyLmbs);
        position = position.checked_add(run.set.lmbs).ok_or(too_many)?;
    }
    Ok(())
}

/// The runs that have connectors, in the order of their DRC indices.
pub(super) fn index<'a>(runs: &[Run], by_index: &'a mut [u32]) -> Result<&'a [u32], TableError> {
    let mut len = 0;
    for (number, run) in (0_u32..).zip(runs) {
        if run.set.has_connectors() {
            by_index[len] = number;
            len += 1;
        }
    }
    let by_index = &mut by_index[..len];
    let set = |number: u32| runs[number as usize].set;
    by_index.sort_unstable_by_key(|&number| set(number).drc_index);
    for pair in by_index.windows(2) {
        let (below, above) = (set(pair[0]), set(pair[1]));
        if above.drc_index - below.drc_index < below.lmbs {
            let index = DrcIndex(above.drc_index);
            return Err(TableError::Property(PropertyError::DuplicateIndex(index)));
        }
    }
    Ok(by_index)
}

impl From<PropertyError> for TableError {
    fn from(error: PropertyError) -> TableError {
        TableError::Property(error)
    }
}

impl fmt::Display for TableError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            TableError::Property(error) => error.fmt(f),
            TableError::Storage(needs) => write!(
                f,
                "the table needs {} groups, {} runs and {} cells of arrays",
                needs.groups, needs.runs, needs.arrays
            ),
        }
    }
}

impl core::error::Error for TableError {}
