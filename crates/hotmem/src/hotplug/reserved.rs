//! Boot memory that was reserved, and is given to the allocator.

use super::Hotplug;
use crate::addr::PfnRange;
use crate::frames::FreeError;
use crate::mapping::Mapping;
use crate::platform::Platform;

impl<P: Platform, M: Mapping> Hotplug<'_, P, M> {
    /// Frees memory that was reserved at boot and is needed no more (an initial ramdisk, the code of
    /// boot itself), all of it in use: from now on its zone manages it. What is freed with
    /// [`Frames::free_raw`](crate::Frames::free_raw) instead can be allocated as well, but is not
    /// counted as managed before it has been offline.
    ///
    /// Cost: a few loads a word of 64 frames, and the frees.
    ///
    /// # Safety
    /// Nobody uses any of `range` any more.
    ///
    /// # Errors
    /// As of [`Frames::free_raw`](crate::Frames::free_raw), and
    /// [`NotReserved`](crate::FreeErrorKind::NotReserved) for memory that boot did not reserve, or
    /// that came back by this before.
    pub unsafe fn free_reserved(&mut self, range: PfnRange) -> Result<(), FreeError> {
        let (frames, zones) = (self.frames, &mut self.zones);
        frames.free_reserved(range, |freed| {
            if let Some(node) = frames.node_of(freed.start()) {
                zones.note_managed(node, freed);
            }
        })
    }
}
