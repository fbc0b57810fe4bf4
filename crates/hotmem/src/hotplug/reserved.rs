//! Frees boot memory that was reserved.

use super::Hotplug;
use super::zone_counts::PartRecord;
use super::zone_part::ZonePart;
use crate::addr::PfnRange;
use crate::invariant::OrViolation;
use crate::mapping::Mapping;
use crate::platform::Platform;
use crate::range_error::RangeError;
use crate::words::Zone;

impl<P: Platform, M: Mapping> Hotplug<'_, P, M> {
    /// Frees memory that was reserved at boot and is no longer needed (an initial ramdisk, code
    /// that runs only at boot). All of `range` must be in use. From now on, the zone of `range`
    /// counts it as managed. The kernel can free such memory with
    /// [`Frames::free_raw`](crate::Frames::free_raw) as well. Memory that was freed by `free_raw`
    /// can be allocated, but its zone does not count it as managed until the memory has been taken
    /// offline and put online again.
    ///
    /// Cost: O(frames / 64), and the frees.
    ///
    /// # Safety
    /// Nobody uses any frame of `range` any more.
    ///
    /// # Errors
    /// Those of [`Frames::free_raw`](crate::Frames::free_raw), and
    /// [`NotReserved`](crate::RangeErrorKind::NotReserved) for memory that boot did not reserve or
    /// that this call freed before.
    pub unsafe fn free_reserved(&mut self, range: PfnRange) -> Result<(), RangeError> {
        self.frames.free_reserved(range, |freed| {
            let part = ZonePart::at(Zone::Kernel, freed.start(), self.zones.low_end());
            if let Some(section) = self.words().section_of(freed.start()).or_violation() {
                let node = section.node(self.words());
                PartRecord::change(self.words(), node, part, |record| {
                    record.unmanaged_frames -= freed.frames()
                });
            }
        })
    }
}
