//! Defines the calls that the hypervisor must provide for connectors (PAPR 13.5.3).

use crate::outcome::RefusedLmb;
use crate::property::DrcIndex;
use crate::write::PropertyValue;

/// The hypervisor's side of dynamic memory: one method for each RTAS call.
///
/// Each method returns a status as RTAS defines it: 0 is success, [`BUSY`](crate::BUSY) and 9900 to
/// 9905 ask the caller to try again, and anything else is a failure.
/// [`Dlpar::poll`](crate::Dlpar::poll) calls these methods.
pub trait Connectors {
    /// Calls `get-sensor-state` for dr-entity-sense (9003). Returns the status and the state.
    fn entity_sense(&mut self, connector: DrcIndex) -> (i32, i32);

    /// Calls `set-indicator` for allocation-state (9003). `usable` says whether to give the memory
    /// to the partition or to take it back.
    fn set_allocation(&mut self, connector: DrcIndex, usable: bool) -> i32;

    /// Calls `set-indicator` for isolation-state (9001). `isolated` says whether to make the memory
    /// inaccessible or accessible.
    fn set_isolation(&mut self, connector: DrcIndex, isolated: bool) -> i32;

    /// Calls `ibm,configure-connector`. Copies the LMB's `ibm,associativity`, without its length,
    /// to `list`, and returns the number of entries, or `None` if the platform reports no list.
    ///
    /// An implementation must repeat the RTAS call with the same work area until its status is 0 or
    /// an error, even if the implementation does not need the rest of the reply. Until then the
    /// connector is not configured, and a platform may refuse to isolate it (QEMU returns -3), so
    /// that its LMB could never be removed. If a call returns a busy status, the implementation
    /// returns that status, and continues with the same work area when it is called again.
    fn configure(
        &mut self,
        connector: DrcIndex,
        list: &mut [u32; MAX_LIST_LEN],
    ) -> (i32, Option<usize>);

    /// Writes the new properties to the device tree. This is the last step of a request. If it
    /// fails, the request is undone. `arrays` is `Some` if connectors have reported lists that the
    /// device tree does not contain.
    fn update(&mut self, memory: PropertyValue<'_>, arrays: Option<PropertyValue<'_>>) -> i32;

    /// Receives an LMB that a request has skipped, could not restore or has lost, and the reason.
    /// The request's summary contains only the numbers of such LMBs.
    fn refused(&mut self, refused: &RefusedLmb) {
        let _ = refused;
    }
}

/// The maximal length of an associativity list. Current platforms have four entries.
pub const MAX_LIST_LEN: usize = 16;
