//! What the hypervisor is asked (PAPR 13.5.3).

use crate::property::DrcIndex;
use crate::request::Refused;
use crate::write::Written;

/// The hypervisor's side of dynamic memory: RTAS calls, as thin as they are.
///
/// A reply is a status as RTAS gives it: 0 is success, [`BUSY`](crate::BUSY) and 9900 to 9905 ask
/// for another try, anything else is a failure. Called from within
/// [`Dlpar::poll`](crate::Dlpar::poll).
pub trait Connectors {
    /// `get-sensor-state` of dr-entity-sense (9003): status and state.
    fn entity_sense(&mut self, connector: DrcIndex) -> (i32, i32);

    /// `set-indicator` of allocation-state (9003): `usable` gives the memory to the partition.
    fn set_allocation(&mut self, connector: DrcIndex, usable: bool) -> i32;

    /// `set-indicator` of isolation-state (9001): the partition can use the memory, or cannot.
    fn set_isolation(&mut self, connector: DrcIndex, isolated: bool) -> i32;

    /// `ibm,configure-connector`: the LMB's `ibm,associativity` without its length, and how many
    /// entries were put into `list`. `None`: the platform has nothing to say beyond the property.
    ///
    /// The call is repeated with one work area until its status is 0 or an error, whatever the
    /// caller needs of the answer: before that, the connector is not configured, and a platform
    /// refuses to isolate it (QEMU with -3), so that its LMB can never be removed. Where the
    /// platform is busy half-way, this returns that status and goes on with the same work area when
    /// it is called again.
    fn configure(
        &mut self,
        connector: DrcIndex,
        list: &mut [u32; LONGEST_LIST],
    ) -> (i32, Option<usize>);

    /// Takes the device tree's new properties: once in a request that succeeds, as its last step.
    /// A failure undoes the request. `arrays` is there if connectors named lists that the device
    /// tree does not have.
    fn update(&mut self, memory: Written<'_>, arrays: Option<Written<'_>>) -> i32;

    /// Is told of each LMB that a request passes over, cannot undo or loses, and why. A summary has
    /// the numbers of these only.
    fn refused(&mut self, refused: &Refused) {
        let _ = refused;
    }
}

/// The longest associativity list that is understood; platforms of today have four entries.
pub const LONGEST_LIST: usize = 16;
