//! Memory that a device may reach stays where it is: the host is not given it.

use super::Hotplug;
use crate::addr::PfnRange;
use crate::frames::PinError;
use crate::mapping::Mapping;
use crate::platform::Platform;
use crate::sync::Ordering;
use crate::words::Part;

impl<P: Platform, M: Mapping> Hotplug<'_, P, M> {
    /// Pins `range`: a device that was assigned to this machine may reach it at any time, and no
    /// access of a device's waits for the host to find memory again. Until it is
    /// [unpinned](Self::unpin), no part of it is reported, marked as reported, inflated or hinted;
    /// what is reported is taken back. Memory of the range that comes later is pinned as well. A
    /// driver pins what it has allocated before it tells the device of it.
    ///
    /// `touch` gets all of the range that is online, in pieces of at most a pageblock, so that the
    /// host finds memory for what it may have taken: it writes to each frame, and changes nothing.
    /// Others may use these frames meanwhile, so this must be one atomic instruction, such as x86's
    /// `lock or byte ptr [frame], 0`; in frames that are the caller's alone, any write will do.
    ///
    /// A pin does not keep memory from going offline: a kernel that wants that has a veto in
    /// [`Hooks::going_offline`](crate::Hooks::going_offline).
    ///
    /// Context: as for all of the control path. Cost: O(pageblocks), and what `touch` costs.
    ///
    /// # Errors
    /// [`PinError`]; `touch` was not called then.
    pub fn pin(
        &mut self,
        range: PfnRange,
        mut touch: impl FnMut(PfnRange),
    ) -> Result<(), PinError> {
        self.frames.insert_pin(range)?;
        for Part { section, blocks } in self.parts(range) {
            let online = blocks & section.online.load(Ordering::Acquire);
            for block in section.blocks(online) {
                touch(block.range().intersection(range));
            }
        }
        Ok(())
    }

    /// Undoes one [`pin`](Self::pin) of exactly this range, and wakes the reporter; says whether
    /// there was one.
    pub fn unpin(&mut self, range: PfnRange) -> bool {
        self.frames.remove_pin(range)
    }
}
