//! Boot memory that was reserved, and is given to the allocator.

use super::Hotplug;
use super::zone_counts::Kept;
use super::zone_part::ZonePart;
use crate::addr::PfnRange;
use crate::frames::FreeError;
use crate::known::Known;
use crate::mapping::Mapping;
use crate::platform::Platform;
use crate::words::Zone;

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
        self.frames.free_reserved(range, |freed| {
            let part = ZonePart::at(Zone::Kernel, freed.start(), self.zones.low_end());
            if let Some(section) = self.words().section_of(freed.start()).known() {
                let node = section.node();
                Kept::change(self.words(), node, part, |kept| kept.unmanaged -= freed.frames());
            }
        })
    }
}
