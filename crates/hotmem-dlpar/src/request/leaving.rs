//! LMBs on their way offline.

use super::machine::Machine;
use super::taken::Was;
use hotmem::{Known, Mapping, Offline, Platform};

/// LMBs on their way offline.
#[derive(Debug)]
pub(super) struct Leaving<'f, P: Platform> {
    pub(super) first: u32,
    pub(super) lmbs: u32,
    pub(super) was: Was,
    pub(super) offline: Offline<'f, P>,
}

impl<'f, P: Platform> Leaving<'f, P> {
    /// They stay.
    pub(super) fn cancel<M: Mapping, C: ?Sized>(self, machine: &mut Machine<'_, 'f, P, M, C>) {
        // Begun on this machine, as `poll` has seen to.
        self.offline.cancel(machine.hotplug, machine.hooks).known();
    }
}
