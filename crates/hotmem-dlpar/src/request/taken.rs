//! The LMBs that the request in progress has in its hands.

use crate::associativity::NO_ROW;
use crate::table::Table;

impl Table<'_> {
    /// The request in progress has the LMB in hand.
    pub(super) fn take(&mut self, position: u32) {
        let (group, bit) = self.group_mut(position);
        group.taken |= 1 << bit;
        self.taken += 1;
    }

    /// The request has it in hand no longer.
    pub(super) fn let_go(&mut self, position: u32) {
        let (group, bit) = self.group_mut(position);
        let mask = !(1_u64 << bit);
        (group.taken, group.online, group.movable) =
            (group.taken & mask, group.online & mask, group.movable & mask);
        group.told[bit] = NO_ROW;
        self.taken -= 1;
    }

    /// The partition has it, or not.
    pub(super) fn assign(&mut self, position: u32, assigned: bool) {
        let (group, bit) = self.group_mut(position);
        let mask = 1_u64 << bit;
        group.assigned = if assigned { group.assigned | mask } else { group.assigned & !mask };
        if assigned && group.told[bit] != NO_ROW {
            group.aa_index[bit] = group.told[bit];
        }
    }
}
