//! Defines the state of a cancellation.

/// The state of a cancellation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Cancellation {
    None,
    /// The caller has cancelled the request.
    Requested,
    /// The caller has cancelled the request, and first the calls for one connector are being undone.
    UndoingConnector,
    /// The caller has cancelled the request again, so it does not wait for that connector.
    RequestedAgain,
}
