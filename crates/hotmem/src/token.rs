//! What one machine has made, every other refuses.

use crate::frames::Frames;
use crate::origin::MachineId;

/// Something that only the machine that made it may take.
pub(crate) trait Token: Sized {
    /// Which one that is.
    fn machine(&self) -> MachineId;

    /// The token, if it is this machine's; else it is handed back as the error.
    fn of<P>(self, frames: &Frames<P>) -> Result<Self, Self> {
        if self.machine() == frames.id() { Ok(self) } else { Err(self) }
    }
}
