//! Stores all LMBs of a machine, in the order of their addresses.
//!
//! Constant data are stored for *runs* of LMBs with consecutive addresses and DRC indices. A
//! machine with a million LMBs has only a few runs. An LMB is found by position, address or DRC
//! index: binary search finds the run, and arithmetic finds the LMB within the run. Variable data
//! are stored for *groups* of 64 LMBs. Each word of a group holds one bit of each LMB, as each word
//! of a section in the engine holds one bit of each pageblock.

mod storage;
mod stretch;

pub use storage::{Group, Needs, Run, Storage, TableError};
pub(crate) use stretch::Stretch;

use crate::associativity::{LookupArrays, Numa, Rows};
use crate::property::{DrcIndex, DynamicMemory, FLAG_ASSIGNED, FLAG_RESERVED, LmbSize, Version};
use hotmem::{NodeId, Pfn, PfnRange};
use hotmem_invariant::OrRecordViolation;
use storage::{GROUP, GROUP_LMBS, assign_positions, sort_by_drc_index};

/// The table of all LMBs.
#[derive(Debug)]
pub struct Table<'a> {
    pub(crate) version: Version,
    pub(crate) lmb_size: LmbSize,
    pub(crate) lmbs: u32,
    pub(crate) runs: &'a [Run],
    /// The runs that have connectors, in the order of their first DRC index.
    by_index: &'a [u32],
    pub(crate) groups: &'a mut [Group],
    pub(crate) rows: Rows<'a>,
    numa: Numa,
    /// The number of LMBs that the open request has taken.
    pub(crate) taken_lmbs: u32,
}

/// A logical memory block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Lmb {
    /// The LMB's frames.
    pub range: PfnRange,
    /// The LMB's connector, if it has one.
    pub drc_index: Option<DrcIndex>,
    /// The LMB's associativity index.
    pub aa_index: u32,
    /// `FLAG_*`.
    pub flags: u32,
    /// The node of the LMB's memory. `None` if no associativity list names one: then the memory is
    /// added to the first node that has memory online.
    pub node: Option<NodeId>,
}

impl<'a> Table<'a> {
    /// Makes the table from the device tree's properties.
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
        assign_positions(runs, memory.lmb_size())?;
        let by_index = sort_by_drc_index(runs, by_index)?;
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
            taken_lmbs: 0,
        };
        table.fill_groups();
        Ok(table)
    }

    /// Returns the number of LMBs.
    #[must_use]
    pub fn len(&self) -> u32 {
        self.lmbs
    }

    /// Returns whether there are no LMBs.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.lmbs == 0
    }

    /// Returns the size of an LMB.
    #[must_use]
    pub fn lmb_size(&self) -> LmbSize {
        self.lmb_size
    }

    /// Returns how many LMBs the partition has. LMBs without a connector count if they are marked
    /// as assigned.
    #[must_use]
    pub fn assigned_count(&self) -> u32 {
        self.count(|group| group.assigned)
    }

    /// Returns the LMB with this DRC index. Cost: O(log runs).
    #[must_use]
    pub fn by_index(&self, index: DrcIndex) -> Option<Lmb> {
        self.position_of(index).map(|position| self.lmb(position))
    }

    /// Returns the LMB that holds this physical address. Cost: O(log runs).
    #[must_use]
    pub fn by_address(&self, address: u64) -> Option<Lmb> {
        let run = self.last_run(|run| run.set.address <= address)?;
        let nth = (address - run.set.address) / self.lmb_size.bytes().0;
        let nth = u32::try_from(nth).ok().filter(|&nth| nth < run.set.lmbs)?;
        Some(self.lmb(run.first + nth))
    }

    /// Returns the node of the LMB that holds this physical address, if there is such an LMB and its
    /// associativity list names a node. Cost: O(log runs).
    #[must_use]
    pub fn node_at(&self, address: u64) -> Option<NodeId> {
        self.by_address(address).and_then(|lmb| lmb.node)
    }

    /// Returns all LMBs, by address.
    pub fn lmbs(&self) -> impl Iterator<Item = Lmb> {
        (0..self.lmbs).map(|position| self.lmb(position))
    }

    /// Returns all LMBs that have connectors, by DRC index.
    pub fn by_drc_index(&self) -> impl Iterator<Item = Lmb> {
        let runs = self.by_index.iter().filter_map(|&run| self.run(run));
        runs.flat_map(|run| (run.first..run.end()).map(|position| self.lmb(position)))
    }

    /// Returns the memory that the partition has and can give back, in ranges of one node. Memory whose
    /// associativity list names no node is on node 0. Together with the LMBs without connectors it is
    /// a kernel's boot memory.
    pub fn assigned(&self) -> impl Iterator<Item = (PfnRange, NodeId)> {
        let mut from = 0;
        core::iter::from_fn(move || {
            let assigned = |group: &Group| group.assigned & group.eligible;
            let stretch = self.stretch(self.next(from, assigned)?, assigned, u32::MAX);
            from = stretch.first_position + stretch.lmbs;
            Some((stretch.range, stretch.node.unwrap_or(NodeId::ZERO)))
        })
    }

    pub(crate) fn position_of(&self, index: DrcIndex) -> Option<u32> {
        let end = self
            .by_index
            .partition_point(|&run| self.run(run).is_some_and(|run| run.set.drc_index <= index.0));
        let run = self.run(*self.by_index.get(end.checked_sub(1)?)?)?;
        let nth = index.0 - run.set.drc_index;
        (nth < run.set.lmbs).then(|| run.first + nth)
    }

    /// Returns the LMB at a position below [`len`](Self::len).
    pub(crate) fn lmb(&self, position: u32) -> Lmb {
        let run = self.run_of(position);
        let (group, bit) = self.group_of(position);
        let nth = position - run.first;
        let aa_index = group.row(bit);
        let assigned = if group.assigned >> bit & 1 != 0 { FLAG_ASSIGNED } else { 0 };
        Lmb {
            range: self.frames_of(run, nth, 1),
            drc_index: run.set.has_connectors().then(|| DrcIndex(run.set.drc_index + nth)),
            aa_index,
            flags: group.flags[bit] | assigned,
            node: self.numa.node(self.rows.row(aa_index, group.flags[bit])),
        }
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
        // Every position lies in a run, because the first run begins at 0.
        self.last_run(|run| run.first <= position).or_record_violation().unwrap_or(&Run::EMPTY)
    }

    /// Returns the frames of `lmbs` LMBs of a run.
    pub(crate) fn frames_of(&self, run: &Run, nth: u32, lmbs: u32) -> PfnRange {
        // The construction of the table has checked that the run is addressable.
        let frames = |lmbs: u32| u64::from(lmbs) * self.lmb_size.frames();
        let start = Pfn::containing(run.set.address).and_then(|pfn| pfn.checked_add(frames(nth)));
        start
            .and_then(|start| PfnRange::with_len(start, frames(lmbs)))
            .or_record_violation()
            .unwrap_or(PfnRange::EMPTY)
    }

    fn last_run(&self, is_before: impl Fn(&Run) -> bool) -> Option<&Run> {
        let end = self.runs.partition_point(is_before);
        self.runs.get(end.checked_sub(1)?)
    }

    fn run(&self, number: u32) -> Option<&Run> {
        self.runs.get(number as usize)
    }

    /// Sets the flags and bits of all LMBs as the runs have them.
    fn fill_groups(&mut self) {
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
