//! Finds stretches, which are neighbouring LMBs of one node in the same state.

use super::{GROUP, GROUP_LMBS, Group, Lmb, Table};
use core::ops::Range;
use hotmem::{NodeId, PfnRange, geometry::SECTION_FRAMES};
use hotmem_invariant::OrRecordViolation;

/// Neighbouring LMBs of one node.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stretch {
    pub(crate) first_position: u32,
    pub(crate) lmbs: u32,
    pub(crate) range: PfnRange,
    /// Their node, if the associativity lists name one.
    pub(crate) node: Option<NodeId>,
}

/// Returns the indices of the groups with an LMB in a range of positions.
fn groups_of(range: &Range<u32>) -> Range<usize> {
    range.start as usize / GROUP..(range.end as usize).div_ceil(GROUP)
}

impl Table<'_> {
    /// Returns the first position at or above `from` whose bit `mask_of` returns.
    pub(crate) fn next(&self, from: u32, mask_of: impl Fn(&Group) -> u64) -> Option<u32> {
        self.next_in(from..self.lmbs, mask_of)
    }

    /// Returns the first position in a range whose bit `mask_of` returns.
    ///
    /// Cost: reads one word for every 64 LMBs of the range.
    pub(crate) fn next_in(
        &self,
        range: Range<u32>,
        mask_of: impl Fn(&Group) -> u64,
    ) -> Option<u32> {
        let start = range.start / GROUP_LMBS;
        let mut mask = u64::MAX << (range.start % GROUP_LMBS);
        for (index, group) in (start..).zip(self.groups.get(groups_of(&range))?) {
            let found = mask_of(group) & mask;
            if found != 0 {
                let position = index * GROUP_LMBS + found.trailing_zeros();
                return Some(position).filter(|position| range.contains(position));
            }
            mask = u64::MAX;
        }
        None
    }

    /// Iterates over the groups with a taken LMB in a range of positions.
    pub(crate) fn taken_groups(&mut self, range: Range<u32>) -> impl Iterator<Item = &mut Group> {
        let groups = self.groups.get_mut(groups_of(&range)).unwrap_or_default();
        groups.iter_mut().filter(|group| group.taken != 0)
    }

    /// Returns the number of LMBs whose bits `mask_of` returns.
    pub(crate) fn count(&self, mask_of: impl Fn(&Group) -> u64) -> u32 {
        self.groups.iter().map(|group| mask_of(group).count_ones()).sum()
    }

    /// Returns the neighbouring LMBs of one node from `first` on whose bits `mask_of` returns: at
    /// most `limit`, and at least `first` itself.
    pub(crate) fn stretch(
        &self,
        first: u32,
        mask_of: impl Fn(&Group) -> u64,
        limit: u32,
    ) -> Stretch {
        let Lmb { range, node, aa_index, flags, .. } = self.lmb(first);
        let mut last_row_and_flags = (aa_index, flags);
        let mut end = first + 1;
        let mut run = *self.run_of(first);
        let mut end_pfn = range.end();
        while end < self.lmbs && end - first < limit {
            let (group, bit) = self.group_of(end);
            if mask_of(group) >> bit & 1 == 0 {
                break;
            }
            if end == run.end() {
                run = *self.run_of(end);
                if self.frames_of(&run, 0, 1).start() != end_pfn {
                    break;
                }
            }
            let row_and_flags = (group.row(bit), group.flags[bit]);
            if row_and_flags != last_row_and_flags {
                if self.numa.node(self.rows.row(row_and_flags.0, row_and_flags.1)) != node {
                    break;
                }
                last_row_and_flags = row_and_flags;
            }
            end += 1;
            // The construction of the table has checked that the run is addressable.
            end_pfn = end_pfn
                .checked_add(self.lmb_size.frames())
                .or_record_violation()
                .unwrap_or(end_pfn);
        }
        let range = PfnRange::new(range.start(), end_pfn).or_record_violation().unwrap_or(range);
        Stretch { first_position: first, lmbs: end - first, range, node }
    }

    /// Returns the frames of the first `lmbs` LMBs of a stretch.
    pub(crate) fn part_of(&self, stretch: &Stretch, lmbs: u32) -> PfnRange {
        let frames = u64::from(lmbs) * self.lmb_size.frames();
        let end = stretch.range.start().checked_add(frames).unwrap_or(stretch.range.end());
        stretch.range.split_at(end).0
    }

    /// Returns the frames of the first LMB of a stretch.
    pub(crate) fn first_of(&self, stretch: &Stretch) -> PfnRange {
        self.part_of(stretch, 1)
    }

    /// Returns how many LMBs lie from `first` to the end of its section (128 MiB).
    pub(crate) fn lmbs_to_section_end(&self, first: u32) -> u32 {
        let start = self.lmb(first).range.start().number();
        let frames = self.lmb_size.frames();
        let frames_left = SECTION_FRAMES as u64 - start % SECTION_FRAMES as u64;
        u32::try_from(frames_left.div_ceil(frames)).unwrap_or(u32::MAX)
    }

    /// Returns the number of whole LMBs in a range.
    pub(crate) fn lmbs_in(&self, range: PfnRange) -> u32 {
        u32::try_from(range.frames() / self.lmb_size.frames()).unwrap_or(u32::MAX)
    }
}
