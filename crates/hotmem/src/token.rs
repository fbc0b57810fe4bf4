//! Drops a token that is passed to another instance than the one that made it.

use crate::frames::Frames;
use crate::origin::InstanceId;

/// A value that is the right to memory of the instance that made it. Another instance may have the
/// same frame numbers for other memory, so it must not act on the token.
pub(crate) trait Token: Sized {
    /// Returns the instance that made the token.
    fn instance(&self) -> InstanceId;

    /// Returns the token if the instance of `frames` made it, and otherwise drops it. The memory of a
    /// token that is dropped stays safe: it stays held or isolated, or the step is undone.
    fn of_instance<P>(self, frames: &Frames<P>) -> Option<Self> {
        (self.instance() == frames.id()).then_some(self)
    }
}
