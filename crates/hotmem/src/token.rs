//! Checks that a call takes a token only on the instance that made it.

use crate::frames::Frames;
use crate::origin::InstanceId;

/// A value that only calls on the instance that made it may take.
pub(crate) trait Token: Sized {
    /// Returns the instance that made the token.
    fn instance(&self) -> InstanceId;

    /// Returns the token, as the error if another instance than that of `frames` made it.
    fn check_instance<P>(self, frames: &Frames<P>) -> Result<Self, Self> {
        if self.instance() == frames.id() { Ok(self) } else { Err(self) }
    }
}
