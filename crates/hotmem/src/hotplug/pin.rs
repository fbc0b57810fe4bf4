//! Pins memory that a device may access, so that the host does not take its RAM.

use super::Hotplug;
use crate::addr::PfnRange;
use crate::mapping::Mapping;
use crate::platform::Platform;
use crate::range_error::RangeError;
use crate::sync::Ordering;
use crate::words::Part;

impl<P: Platform, M: Mapping> Hotplug<'_, P, M> {
    /// Pins `range`: a device that is assigned to this machine may access it at any time, and such
    /// an access cannot wait until the host has given RAM back. Until `range` is
    /// [unpinned](Self::unpin), no part of it is reported, marked as reported, inflated or hinted,
    /// and reported parts are taken back. Memory that is added to the range later is pinned as
    /// well. A driver pins what it has allocated before it gives the device the address.
    ///
    /// `touch` is called with all online memory of the range, in pieces of at most a pageblock. It
    /// must write to each frame and change nothing, so that the host provides RAM where it may have
    /// taken it. Others may use these frames meanwhile, so the write must be one atomic
    /// instruction, such as x86's `lock or byte ptr [frame], 0`; in frames that only the caller
    /// owns, any write will do.
    ///
    /// A pin does not keep memory from going offline: a kernel that needs this vetoes it in
    /// [`Hooks::going_offline`](crate::Hooks::going_offline).
    ///
    /// Context: as for all of the control path. Cost: O(pageblocks), and what `touch` costs.
    ///
    /// # Errors
    /// [`RangeError`]; `touch` was not called.
    pub fn pin(
        &mut self,
        range: PfnRange,
        mut touch: impl FnMut(PfnRange),
    ) -> Result<(), RangeError> {
        self.frames.insert_pin(range)?;
        for Part { section, blocks } in self.parts(range) {
            let online = blocks & section.online.load(Ordering::Acquire);
            for block in section.blocks(online) {
                touch(block.range().intersection(range));
            }
        }
        Ok(())
    }

    /// Undoes one [`pin`](Self::pin) of exactly this range, and wakes the reporter. Returns whether
    /// there was one.
    pub fn unpin(&mut self, range: PfnRange) -> bool {
        self.frames.remove_pin(range)
    }
}
