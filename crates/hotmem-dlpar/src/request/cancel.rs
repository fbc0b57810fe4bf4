//! Defines the state of a cancellation.

/// The state of a cancellation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Cancellation {
    None,
    HypervisorRequest,
    /// The caller has cancelled the request. A call that was in progress is being completed.
    UndoingConnector,
    /// The caller has cancelled the request again, so it does not wait for that call.
    AskedAgain,
}
