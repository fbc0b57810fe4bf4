//! What the engine asks of this kernel.

use super::balloon::BalloonMemory;
use super::pins::Pins;
use super::workload::Workload;
use hotmem::{Hooks, Migration, PfnRange, Veto, Zone};

/// The kernel's part in adding and removing memory: nothing has to be mapped.
pub(super) struct Kernel {
    pub(super) workload: Workload,
    pub(super) pins: Pins,
    /// Ranges that are still to be kept from coming online.
    pub(super) vetoes: u32,
    /// What a balloon has of the kernel's memory, if there is one.
    pub(super) balloon: Option<BalloonMemory>,
}

impl Hooks for Kernel {
    fn going_online(&mut self, _: PfnRange, _: Zone) -> Result<(), Veto> {
        match self.vetoes.checked_sub(1) {
            None => Ok(()),
            Some(left) => {
                self.vetoes = left;
                Err(Veto("the kernel was told to refuse it"))
            }
        }
    }

    fn migrate(&mut self, used: PfnRange) -> Migration {
        if self.pins.holds_any(used) {
            return Migration::Pinned("pinned by the kernel");
        }
        let balloon = self.balloon.as_mut().and_then(|balloon| balloon.migrate(used));
        let answer = balloon.or_else(|| self.workload.migrate(used));
        answer.unwrap_or(Migration::Pinned("in use by the kernel"))
    }
}
