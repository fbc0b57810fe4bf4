//! Defines the storage of a table: groups for variable data, runs for constant data.

use crate::associativity::{LookupArrays, NO_ROW};
use crate::property::{DrcIndex, DynamicMemory, LmbSet, LmbSize, PropertyError};
use core::fmt;
use hotmem::Pfn;

/// The number of LMBs in a group. Each LMB has one bit in each word of the group.
pub(super) const GROUP: usize = 64;
/// The same number in the type of positions.
pub(super) const GROUP_LMBS: u32 = 64;

/// The variable data of 64 LMBs. Lend storage that is filled with [`Group::EMPTY`].
#[derive(Clone, Debug)]
pub struct Group {
    /// LMBs that the partition has.
    pub(crate) assigned: u64,
    /// LMBs that can be added and removed: they are not reserved and have a connector.
    pub(crate) eligible: u64,
    /// LMBs that the open request has taken.
    pub(crate) taken: u64,
    /// LMBs that the request has taken offline. If the request fails, it puts them online again.
    pub(crate) was_online: u64,
    /// Those LMBs of `was_online` that were online in the movable zone.
    pub(crate) was_movable: u64,
    /// Those LMBs of `was_online` that were online in two zones.
    pub(crate) was_mixed: u64,
    /// LMBs of which the partition has the connector and not the memory: a request has acquired the
    /// connector, the engine or the kernel has refused the memory, and the platform did not take
    /// the connector back.
    pub(crate) connector_only: u64,
    /// The flags without [`FLAG_ASSIGNED`].
    pub(crate) flags: [u32; GROUP],
    pub(crate) aa_index: [u32; GROUP],
    /// The associativity index that the connector reported to the request.
    pub(crate) reported: [u32; GROUP],
}

impl Group {
    /// Empty storage.
    pub const EMPTY: Group = Group {
        assigned: 0,
        eligible: 0,
        taken: 0,
        was_online: 0,
        was_movable: 0,
        was_mixed: 0,
        connector_only: 0,
        flags: [0; GROUP],
        aa_index: [NO_ROW; GROUP],
        reported: [NO_ROW; GROUP],
    };

    /// Returns the row of the lookup arrays for an LMB. While the LMB is taken, this is the row that
    /// its connector reported, if it did.
    pub(crate) fn row(&self, bit: usize) -> u32 {
        match self.reported[bit] {
            row if self.taken >> bit & 1 != 0 && row != NO_ROW => row,
            _ => self.aa_index[bit],
        }
    }

    /// Returns the LMBs that a request may add.
    pub(crate) fn addable(&self) -> u64 {
        self.eligible & !self.assigned & !self.taken
    }

    /// Returns the LMBs that a request may remove.
    pub(crate) fn removable(&self) -> u64 {
        self.eligible & self.assigned & !self.taken
    }
}

/// The constant data of LMBs with consecutive addresses and DRC indices. Lend storage that is
/// filled with [`Run::EMPTY`].
#[derive(Clone, Copy, Debug, Default)]
pub struct Run {
    pub(crate) set: LmbSet,
    /// The position of its first LMB.
    pub(crate) first: u32,
}

impl Run {
    /// Empty storage.
    pub const EMPTY: Run = Run {
        set: LmbSet { lmbs: 0, address: 0, drc_index: 0, reserved: 0, aa_index: 0, flags: 0 },
        first: 0,
    };

    /// Returns the position after its last LMB.
    pub(crate) fn end(&self) -> u32 {
        // The construction of the table has checked this sum.
        self.first + self.set.lmbs
    }
}

/// The storage of a [`Table`](super::Table). The caller lends it; each slice must be at least as
/// long as [`Needs`] says.
#[derive(Debug)]
pub struct Storage<'a> {
    /// One group for every 64 LMBs.
    pub groups: &'a mut [Group],
    /// One run for each set.
    pub runs: &'a mut [Run],
    /// One entry for each set.
    pub by_index: &'a mut [u32],
    /// The lookup arrays, with room for lists that connectors may report.
    pub arrays: &'a mut [u32],
}

/// The required lengths of a [`Storage`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Needs {
    /// The length of `groups`.
    pub groups: usize,
    /// The length of `runs` and of `by_index`.
    pub runs: usize,
    /// The length of `arrays`, without room for new lists.
    pub arrays: usize,
}

impl Needs {
    /// Returns the lengths for a table of this memory.
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

/// The reason why a table cannot be made.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TableError {
    /// The property contradicts itself.
    Property(PropertyError),
    /// The storage is too short.
    Storage(Needs),
}

/// Sorts runs by address and assigns their positions.
pub(super) fn assign_positions(runs: &mut [Run], size: LmbSize) -> Result<(), TableError> {
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

/// Writes the numbers of the runs that have connectors to `by_index`, in the order of their DRC
/// indices.
pub(super) fn sort_by_drc_index<'a>(
    runs: &[Run],
    by_index: &'a mut [u32],
) -> Result<&'a [u32], TableError> {
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
