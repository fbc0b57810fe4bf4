//! The state of a cancellation.

/// The state of a cancellation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Cancel {
    No,
    Asked,
    /// Requested; a call that was in progress is being completed.
    Turning,
    /// Requested again: the caller does not wait for that call.
    AskedAgain,
}
