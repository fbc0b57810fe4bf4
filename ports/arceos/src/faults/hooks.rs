//! Hooks with injected vetoes.

use super::{Fault, happens};
use hotmem::{Hooks, Migration, PfnRange, Veto, Zone};

/// A kernel's hooks, with the vetoes that [`Fault`](super::Fault) describes.
pub struct FaultyHooks<H>(pub H);

const REFUSED: Veto = Veto("the host asks for a veto");

impl<H: Hooks> Hooks for FaultyHooks<H> {
    fn going_online(&mut self, range: PfnRange, zone: Zone) -> Result<(), Veto> {
        if happens(Fault::Online) { Err(REFUSED) } else { self.0.going_online(range, zone) }
    }

    fn going_offline(&mut self, range: PfnRange) -> Result<(), Veto> {
        if happens(Fault::Offline) { Err(REFUSED) } else { self.0.going_offline(range) }
    }

    fn discard(&mut self, within: PfnRange) {
        self.0.discard(within);
    }

    fn migrate(&mut self, used: PfnRange) -> Migration {
        self.0.migrate(used)
    }
}
