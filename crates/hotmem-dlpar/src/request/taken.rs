//! Records which LMBs the open request has taken, and in which state they were.

use crate::associativity::NO_ROW;
use crate::table::{Group, Table};
use hotmem::OnlineType;

/// The state of memory before a request took it offline.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum FormerState {
    Offline,
    Kernel,
    Movable,
    /// The memory was online in two zones.
    Mixed,
}

impl FormerState {
    /// Returns the taken LMBs of a group that were in this state.
    pub(super) fn of(self, group: &Group) -> u64 {
        group.taken
            & match self {
                FormerState::Offline => !group.was_online,
                FormerState::Kernel => group.was_online & !group.was_movable & !group.was_mixed,
                FormerState::Movable => group.was_movable,
                FormerState::Mixed => group.was_mixed,
            }
    }

    /// Returns the online type that restores this state.
    pub(super) fn online_type(self) -> OnlineType {
        match self {
            FormerState::Offline => OnlineType::Offline,
            FormerState::Kernel => OnlineType::Kernel,
            FormerState::Movable => OnlineType::Movable,
            // The engine remembers both zones until the memory is removed.
            FormerState::Mixed => OnlineType::AsBefore,
        }
    }
}

impl Table<'_> {
    /// Takes the LMB for the open request.
    pub(super) fn take(&mut self, position: u32) {
        let (group, bit) = self.group_mut(position);
        group.taken |= 1 << bit;
        self.taken_lmbs += 1;
    }

    /// Returns whether the open request has taken the LMB.
    pub(super) fn is_taken(&self, position: u32) -> bool {
        let (group, bit) = self.group_of(position);
        group.taken >> bit & 1 != 0
    }

    /// Records the former state of a taken LMB whose memory is offline now.
    pub(super) fn record_former_state(&mut self, position: u32, former: FormerState) {
        let (group, bit) = self.group_mut(position);
        let bit_if = |yes: bool| u64::from(yes) << bit;
        group.was_online |= bit_if(former != FormerState::Offline);
        group.was_movable |= bit_if(former == FormerState::Movable);
        group.was_mixed |= bit_if(former == FormerState::Mixed);
    }

    /// Returns the state of a taken LMB before it went offline.
    pub(super) fn former_state(&self, position: u32) -> FormerState {
        let (group, bit) = self.group_of(position);
        let is = |former: &FormerState| former.of(group) >> bit & 1 != 0;
        [FormerState::Kernel, FormerState::Movable, FormerState::Mixed]
            .into_iter()
            .find(is)
            .unwrap_or(FormerState::Offline)
    }

    /// Records that the open request no longer has the LMB.
    pub(super) fn clear_taken(&mut self, position: u32) {
        let (group, bit) = self.group_mut(position);
        let mask = !(1_u64 << bit);
        for word in
            [&mut group.taken, &mut group.was_online, &mut group.was_movable, &mut group.was_mixed]
        {
            *word &= mask;
        }
        group.reported[bit] = NO_ROW;
        self.taken_lmbs -= 1;
    }

    /// Records whether the partition keeps the connector of an LMB without its memory.
    pub(super) fn set_connector_only(&mut self, position: u32, is_connector_only: bool) {
        let (group, bit) = self.group_mut(position);
        let mask = 1_u64 << bit;
        group.connector_only = if is_connector_only {
            group.connector_only | mask
        } else {
            group.connector_only & !mask
        };
        if is_connector_only && group.reported[bit] != NO_ROW {
            group.aa_index[bit] = group.reported[bit];
        }
    }

    /// Returns whether the partition keeps the connector of an LMB without its memory.
    pub(super) fn is_connector_only(&self, position: u32) -> bool {
        let (group, bit) = self.group_of(position);
        group.connector_only >> bit & 1 != 0
    }

    /// Records whether the partition has the LMB.
    pub(super) fn assign(&mut self, position: u32, assigned: bool) {
        let (group, bit) = self.group_mut(position);
        let mask = 1_u64 << bit;
        group.assigned = if assigned { group.assigned | mask } else { group.assigned & !mask };
        if assigned && group.reported[bit] != NO_ROW {
            group.aa_index[bit] = group.reported[bit];
        }
    }
}
