//! Checks that a token is used with the instance that made it, and drops it otherwise.

use crate::frames::Frames;
use crate::origin::InstanceId;

/// A value whose owner may use certain memory of the instance that made it. Another instance may have the
/// same frame numbers for other memory, so it must not act on the token.
pub(crate) trait Token: Sized {
    /// Returns the instance that made the token.
    fn instance(&self) -> InstanceId;

    /// Returns the token if the instance of `frames` made it, and otherwise drops it. To drop a token is
    /// safe: its memory stays held or isolated, or the step that the token prepared is undone.
    fn of_instance<P>(self, frames: &Frames<P>) -> Option<Self> {
        (self.instance() == frames.id()).then_some(self)
    }
}
