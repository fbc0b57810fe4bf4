//! Checks that a call takes a token only on the machine that made it.

use crate::frames::Frames;
use crate::origin::MachineId;

/// A value that only calls on the machine that made it may take.
pub(crate) trait Token: Sized {
    /// Returns the machine that made the token.
    fn machine(&self) -> MachineId;

    /// Returns the token, as the error if another machine than that of `frames` made it.
    fn of<P>(self, frames: &Frames<P>) -> Result<Self, Self> {
        if self.machine() == frames.id() { Ok(self) } else { Err(self) }
    }
}
