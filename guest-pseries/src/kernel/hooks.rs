//! The kernel's hooks for the engine.

use super::balloon::BalloonMemory;
use super::pins::Pins;
use super::workload::Workload;
use hotmem::{Hooks, Migration, PfnRange, Veto, Zone};

/// The state of the hooks.
pub(super) struct KernelHooks {
    pub(super) workload: Workload,
    pub(super) pins: Pins,
    /// The number of times that the kernel still vetoes onlining.
    pub(super) vetoes: u32,
    /// The memory of the balloon device, if there is one.
    pub(super) balloon: Option<BalloonMemory>,
}

impl Hooks for KernelHooks {
    fn going_online(&mut self, _: PfnRange, _: Zone) -> Result<(), Veto> {
        match self.vetoes.checked_sub(1) {
            None => Ok(()),
            Some(remaining) => {
                self.vetoes = remaining;
                Err(Veto("the command line asks for a veto"))
            }
        }
    }

    fn migrate(&mut self, used: PfnRange) -> Migration {
        if self.pins.pins_any(used) {
            return Migration::Unmovable("pinned by the kernel");
        }
        let balloon = self.balloon.as_mut().and_then(|balloon| balloon.migrate(used));
        let answer = balloon.or_else(|| self.workload.migrate(used));
        answer.unwrap_or(Migration::Unmovable("in use by the kernel"))
    }
}
