//! Wraps the kernel's hooks, and injects vetoes.

use super::{Fault, inject};
use hotmem::{Hooks, Migration, PfnRange, Veto, Zone};

/// A kernel's hooks, with the vetoes of [`Fault::Online`] and [`Fault::Offline`].
pub struct FaultyHooks<H>(pub H);

const INJECTED_VETO: Veto = Veto("the host asks for a veto");

impl<H: Hooks> Hooks for FaultyHooks<H> {
    fn going_online(&mut self, range: PfnRange, zone: Zone) -> Result<(), Veto> {
        if inject(Fault::Online) { Err(INJECTED_VETO) } else { self.0.going_online(range, zone) }
    }

    fn going_offline(&mut self, range: PfnRange) -> Result<(), Veto> {
        if inject(Fault::Offline) { Err(INJECTED_VETO) } else { self.0.going_offline(range) }
    }

    fn discard(&mut self, within: PfnRange) {
        self.0.discard(within);
    }

    fn migrate(&mut self, used: PfnRange) -> Migration {
        self.0.migrate(used)
    }
}
