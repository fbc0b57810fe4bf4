//! Keeps the state of a cancellation.

/// The cancellation of the open request.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(super) struct Cancellation(State);

#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
enum State {
    #[default]
    None,
    /// The caller has cancelled the request.
    Requested,
    /// The caller has cancelled the request, and first the calls for one connector are being undone.
    UndoingConnector,
    /// The caller has cancelled the request again, so it does not wait for that connector.
    RequestedAgain,
}

impl Cancellation {
    /// Records that the caller has cancelled the request, maybe again.
    pub(super) fn request(&mut self) {
        self.0 = match self.0 {
            State::None | State::Requested => State::Requested,
            State::UndoingConnector | State::RequestedAgain => State::RequestedAgain,
        };
    }

    /// Returns whether the caller has cancelled the request.
    pub(super) fn is_requested(self) -> bool {
        self.0 != State::None
    }

    /// Records that the calls for one connector are being undone first. Returns whether this is the
    /// first call since the cancellation.
    pub(super) fn begin_with_connector(&mut self) -> bool {
        let is_first = self.0 == State::Requested;
        if is_first {
            self.0 = State::UndoingConnector;
        }
        is_first
    }

    /// Returns whether the caller has cancelled once more, and so does not want to wait. Each
    /// cancellation ends one wait. `undoing` says whether the request is being undone.
    pub(super) fn skips_waiting(&mut self, undoing: bool) -> bool {
        let (requested, next) = match undoing {
            true => (State::Requested, State::None),
            false => (State::RequestedAgain, State::UndoingConnector),
        };
        let skips = self.0 == requested;
        if skips {
            self.0 = next;
        }
        skips
    }
}
