//! All LMBs of a machine, in the order of their addresses.
//!
//! What never changes lies in *runs*, sets of neighbours with consecutive addresses and DRC
//! indices: a machine of a million LMBs has a handful. So an LMB is found by position, address or
//! DRC index by arithmetic within a run, and the run by halving. What changes lies in *groups* of
//! 64 LMBs: a word answers a question about all of them, as a section word does for pageblocks.

use crate::associativity::{LookupArrays, NO_ROW, Numa, Rows};
use crate::property::{
    DrcIndex, DynamicMemory, FLAG_ASSIGNED, FLAG_RESERVED, LmbSet, LmbSize, PropertyError, Version,
};
use core::fmt;
use hotmem::{NodeId, Pfn, PfnRange};

/// LMBs of a group: a bit each in one word.
const GROUP: usize = 64;
/// The same, as positions count.
const GROUP_LMBS: u32 = 64;

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
    /// [`FLAG_ASSIGNED`] apart.
    pub(crate) flags: [u32; GROUP],
    pub(crate) aa_index: [u32; GROUP],
    /// The associativity index that its connector told the request.
    pub(crate) told: [u32; GROUP],
}

/// LMBs that follow each other in address and DRC index: storage, to be lent as [`Run::EMPTY`].
#[derive(Clone, Copy, Debug, Default)]
pub struct Run {
    pub(crate) set: LmbSet,
    /// Position of its first LMB.
    pub(crate) first: u32,
}

/// What a [`Table`] is made of. Lent by the caller, and at least as long as [`Needs`] says.
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

/// Why there is no table.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TableError {
    /// The property contradicts itself.
    Property(PropertyError),
    /// The storage is too short.
    Storage(Needs),
}

/// One LMB.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Lmb {
    /// Its frames.
    pub range: PfnRange,
    /// Its connector; `None` if it has none.
    pub drc_index: Option<DrcIndex>,
    /// Its associativity index.
    pub aa_index: u32,
    /// `FLAG_*`.
    pub flags: u32,
    /// The node that its memory belongs to.
    pub node: NodeId,
}

/// All LMBs.
#[derive(Debug)]
pub struct Table<'a> {
    pub(crate) version: Version,
    pub(crate) lmb_size: LmbSize,
    pub(crate) lmbs: u32,
    pub(crate) runs: &'a [Run],
    /// Runs that have connectors, by their first DRC index.
    by_index: &'a [u32],
    pub(crate) groups: &'a mut [Group],
    pub(crate) rows: Rows<'a>,
    numa: Numa,
    /// LMBs that the request in progress has in its hands.
    pub(crate) taken: u32,
    pub(crate) busy: bool,
}

impl Group {
    /// No LMBs.
    pub const EMPTY: Group = Group {
        assigned: 0,
        eligible: 0,
        taken: 0,
        online: 0,
        movable: 0,
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

impl<'a> Table<'a> {
    /// Makes the table of what the device tree says.
    ///
    /// Cost: O(LMBs + sets × log sets).
    ///
    /// # Errors
    /// [`TableError`].
    pub fn new(
        memory: &DynamicMemory<'_>,
        arrays: &LookupArrays<'_>,
        numa: Numa,
        storage: Storage<'a>,
    ) -> Result<Table<'a>, TableError> {
        let needs = Needs::of(memory, arrays);
        let short = TableError::Storage(needs);
        let groups = storage.groups.get_mut(..needs.groups).ok_or(short)?;
        let runs = storage.runs.get_mut(..needs.runs).ok_or(short)?;
        let by_index = storage.by_index.get_mut(..needs.runs).ok_or(short)?;
        if storage.arrays.len() < needs.arrays {
            return Err(short);
        }
        for (run, set) in runs.iter_mut().zip(memory.sets()) {
            *run = Run { set, first: 0 };
        }
        place(runs, memory.lmb_size())?;
        let by_index = index(runs, by_index)?;
        groups.fill(Group::EMPTY);
        let mut table = Table {
            version: memory.version(),
            lmb_size: memory.lmb_size(),
            lmbs: memory.lmbs(),
            runs,
            by_index,
            groups,
            rows: Rows::new(*arrays, storage.arrays),
            numa,
            taken: 0,
            busy: false,
        };
        table.fill();
        Ok(table)
    }

    /// How many LMBs there are.
    #[must_use]
    pub fn len(&self) -> u32 {
        self.lmbs
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.lmbs == 0
    }

    /// What each holds.
    #[must_use]
    pub fn lmb_size(&self) -> LmbSize {
        self.lmb_size
    }

    /// How many LMBs the partition has; those without a connector are counted if they are marked.
    #[must_use]
    pub fn assigned_count(&self) -> u32 {
        self.count(|group| group.assigned)
    }

    /// The LMB with this DRC index. Cost: O(log runs).
    #[must_use]
    pub fn by_index(&self, index: DrcIndex) -> Option<Lmb> {
        self.position_of(index).map(|position| self.lmb(position))
    }

    /// The LMB that holds this physical address. Cost: O(log runs).
    #[must_use]
    pub fn by_address(&self, address: u64) -> Option<Lmb> {
        let run = self.last_run(|run| run.set.address <= address)?;
        let nth = (address - run.set.address) / self.lmb_size.bytes().0;
        let nth = u32::try_from(nth).ok().filter(|&nth| nth < run.set.lmbs)?;
        Some(self.lmb(run.first + nth))
    }

    /// The node of this physical address, for callers that have nothing else. Cost: O(log runs).
    #[must_use]
    pub fn node_at(&self, address: u64) -> Option<NodeId> {
        self.by_address(address).map(|lmb| lmb.node)
    }

    /// All LMBs, by address.
    pub fn lmbs(&self) -> impl Iterator<Item = Lmb> {
        (0..self.lmbs).map(|position| self.lmb(position))
    }

    /// All LMBs that have connectors, by DRC index.
    pub fn by_drc_index(&self) -> impl Iterator<Item = Lmb> {
        let runs = self.by_index.iter().filter_map(|&run| self.run(run));
        runs.flat_map(|run| (run.first..run.end()).map(|position| self.lmb(position)))
    }

    /// What the partition has and can give back, as ranges of one node: a kernel's boot memory
    /// beside what has no connector.
    pub fn assigned(&self) -> impl Iterator<Item = (PfnRange, NodeId)> {
        let mut from = 0;
        core::iter::from_fn(move || {
            let assigned = |group: &Group| group.assigned & group.eligible;
            let stretch = self.stretch(self.next(from, assigned)?, assigned, u32::MAX)?;
            from = stretch.first + stretch.lmbs;
            Some((stretch.range, stretch.node))
        })
    }

    pub(crate) fn position_of(&self, index: DrcIndex) -> Option<u32> {
        let at = self
            .by_index
            .partition_point(|&run| self.run(run).is_some_and(|run| run.set.drc_index <= index.0));
        let run = self.run(*self.by_index.get(at.checked_sub(1)?)?)?;
        let nth = index.0 - run.set.drc_index;
        (nth < run.set.lmbs).then(|| run.first + nth)
    }

    /// The LMB at a position below [`len`](Self::len).
    pub(crate) fn lmb(&self, position: u32) -> Lmb {
        let run = self.run_of(position);
        let (group, bit) = self.group_of(position);
        let nth = position - run.first;
        let taken = group.taken >> bit & 1 != 0;
        let aa_index = match group.told[bit] {
            told if taken && told != NO_ROW => told,
            _ => group.aa_index[bit],
        };
        let assigned = if group.assigned >> bit & 1 != 0 { FLAG_ASSIGNED } else { 0 };
        Lmb {
            range: self.frames_of(run, nth, 1),
            drc_index: run.set.has_connectors().then(|| DrcIndex(run.set.drc_index + nth)),
            aa_index,
            flags: group.flags[bit] | assigned,
            node: self.numa.node(self.rows.row(aa_index, group.flags[bit])),
        }
    }

    /// The first position from `from` on that `which` has.
    pub(crate) fn next(&self, from: u32, which: impl Fn(&Group) -> u64) -> Option<u32> {
        let start = from / GROUP_LMBS;
        let mut mask = u64::MAX << (from % GROUP_LMBS);
        for (index, group) in (start..).zip(self.groups.get(start as usize..)?) {
            let found = which(group) & mask;
            if found != 0 {
                return Some(index * GROUP_LMBS + found.trailing_zeros());
            }
            mask = u64::MAX;
        }
        None
    }

    /// How many LMBs `which` has.
    pub(crate) fn count(&self, which: impl Fn(&Group) -> u64) -> u32 {
        self.groups.iter().map(|group| which(group).count_ones()).sum()
    }

    /// Neighbours of one node that `which` has, from `first` on, at most `limit`.
    pub(crate) fn stretch(
        &self,
        first: u32,
        which: impl Fn(&Group) -> u64,
        limit: u32,
    ) -> Option<Stretch> {
        if first >= self.lmbs || limit == 0 {
            return None;
        }
        let Lmb { range, node, aa_index, flags, .. } = self.lmb(first);
        let mut alike = (aa_index, flags);
        let mut end = first + 1;
        let mut run = *self.run_of(first);
        let mut end_pfn = range.end();
        while end < self.lmbs && end - first < limit {
            let (group, bit) = self.group_of(end);
            if which(group) >> bit & 1 == 0 {
                break;
            }
            if end == run.end() {
                run = *self.run_of(end);
                if self.frames_of(&run, 0, 1).start() != end_pfn {
                    break;
                }
            }
            let taken = group.taken >> bit & 1 != 0 && group.told[bit] != NO_ROW;
            let row = if taken { group.told[bit] } else { group.aa_index[bit] };
            if (row, group.flags[bit]) != alike {
                if self.numa.node(self.rows.row(row, group.flags[bit])) != node {
                    break;
                }
                alike = (row, group.flags[bit]);
            }
            end += 1;
            end_pfn = end_pfn.checked_add(self.lmb_size.frames()).unwrap_or(end_pfn);
        }
        let range = PfnRange::new(range.start(), end_pfn).unwrap_or(range);
        Some(Stretch { first, lmbs: end - first, range, node })
    }

    pub(crate) fn group_of(&self, position: u32) -> (&Group, usize) {
        let position = position as usize;
        (&self.groups[position / GROUP], position % GROUP)
    }

    pub(crate) fn group_mut(&mut self, position: u32) -> (&mut Group, usize) {
        let position = position as usize;
        (&mut self.groups[position / GROUP], position % GROUP)
    }

    pub(crate) fn run_of(&self, position: u32) -> &Run {
        // Every position lies in a run, the first of which begins at 0.
        self.last_run(|run| run.first <= position).unwrap_or(&Run::EMPTY)
    }

    /// Frames of `lmbs` LMBs of a run.
    pub(crate) fn frames_of(&self, run: &Run, nth: u32, lmbs: u32) -> PfnRange {
        // All of the run was checked to be addressable.
        let frames = |lmbs: u32| u64::from(lmbs) * self.lmb_size.frames();
        let start = Pfn::containing(run.set.address).and_then(|pfn| pfn.checked_add(frames(nth)));
        start.and_then(|start| PfnRange::with_len(start, frames(lmbs))).unwrap_or(PfnRange::EMPTY)
    }

    fn last_run(&self, is_before: impl Fn(&Run) -> bool) -> Option<&Run> {
        let at = self.runs.partition_point(is_before);
        self.runs.get(at.checked_sub(1)?)
    }

    fn run(&self, number: u32) -> Option<&Run> {
        self.runs.get(number as usize)
    }

    fn fill(&mut self) {
        for run in self.runs {
            let flags = run.set.flags & !FLAG_ASSIGNED;
            let bit_if = |yes: bool, bit: usize| u64::from(yes) << bit;
            let eligible = run.set.has_connectors() && flags & FLAG_RESERVED == 0;
            for position in run.first..run.end() {
                let (group, bit) = self.group_mut(position);
                group.flags[bit] = flags;
                group.aa_index[bit] = run.set.aa_index;
                group.eligible |= bit_if(eligible, bit);
                group.assigned |= bit_if(run.set.flags & FLAG_ASSIGNED != 0, bit);
            }
        }
    }
}

/// Neighbouring LMBs of one node.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stretch {
    pub(crate) first: u32,
    pub(crate) lmbs: u32,
    pub(crate) range: PfnRange,
    pub(crate) node: NodeId,
}

/// Brings runs into the order of their addresses and gives them positions.
fn place(runs: &mut [Run], size: LmbSize) -> Result<(), TableError> {
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
fn index<'a>(runs: &[Run], by_index: &'a mut [u32]) -> Result<&'a [u32], TableError> {
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
