//! Holds the LMBs that are being taken offline.

use super::machine::Machine;
use super::taken::FormerState;
use hotmem::{Map, Offline, Platform};

/// LMBs that are being taken offline.
#[derive(Debug)]
pub(super) struct OfflineStretch<'f, P: Platform> {
    pub(super) first_position: u32,
    pub(super) lmbs: u32,
    pub(super) former_state: FormerState,
    pub(super) offline: Offline<'f, P>,
}

impl<'f, P: Platform> OfflineStretch<'f, P> {
    /// Cancels the offlining.
    pub(super) fn cancel<M: Map, C: ?Sized>(self, machine: &mut Machine<'_, 'f, P, M, C>) {
        self.offline.cancel(machine.hotplug, machine.hooks);
    }
}
