//! Checks that a token goes back to the machine that made it.

use crate::frames::Frames;
use crate::origin::MachineId;

/// A value that only the machine that made it may take.
pub(crate) trait Token: Sized {
    /// Returns the machine that made it.
    fn machine(&self) -> MachineId;

    /// Returns the token if this machine made it, and otherwise returns it as the error.
    fn of<P>(self, frames: &Frames<P>) -> Result<Self, Self> {
        if self.machine() == frames.id() { Ok(self) } else { Err(self) }
    }
}
