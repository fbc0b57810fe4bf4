//! Pins memory that a device may access, so that the host does not take its RAM.

use super::Hotplug;
use crate::addr::PfnRange;
use crate::mapping::Map;
use crate::platform::Platform;
use crate::range_error::RangeError;
use crate::sync::Ordering;
use crate::words::SectionPart;

impl<P: Platform, M: Map> Hotplug<'_, P, M> {
    /// Pins `range`, so that the host does not take its RAM. Pin the memory that a device assigned
    /// to this machine may access at any time: such an access cannot wait until the host has given
    /// RAM back. Until `range` is [unpinned](Self::unpin), no part of it is reported, marked as
    /// reported, inflated or hinted. If parts of `range` were reported before, `touch` takes their
    /// RAM back from the host. Memory that is added to the range later is pinned as well. A driver
    /// pins allocated memory before it gives the device the address.
    ///
    /// `touch` is called with all online memory of the range, in parts of at most a pageblock, except
    /// poisoned frames and frames that are no RAM. It
    /// must write to each frame without changing the contents: the write makes the host provide RAM
    /// if it has taken the RAM of this frame. Other code may use these frames at the same time, so
    /// the write must be one atomic instruction, such as x86's `lock or byte ptr [frame], 0`. Any
    /// write will do for frames that only the caller owns.
    ///
    /// A pin does not keep memory from going offline. A kernel that must keep pinned memory online
    /// vetoes in [`Hooks::going_offline`](crate::Hooks::going_offline).
    ///
    /// Context: that of all methods of [`Hotplug`]. Cost: O(pageblocks), each times the number of
    /// poisoned frames of the machine, and the calls of `touch`.
    ///
    /// # Errors
    /// [`RangeError`]. `touch` was not called.
    pub fn pin(
        &mut self,
        range: PfnRange,
        mut touch: impl FnMut(PfnRange),
    ) -> Result<(), RangeError> {
        self.frames.call().insert_pin(range)?;
        for SectionPart { section, blocks } in self.section_parts(range) {
            let online = blocks & section.online.load(Ordering::Acquire);
            for block in section.blocks(online) {
                self.for_each_usable(block.range().intersection(range), &mut touch);
            }
        }
        Ok(())
    }

    /// Calls `each` with the parts of `range`, which lies in one pageblock, that are RAM and not
    /// poisoned.
    fn for_each_usable(&self, range: PfnRange, each: &mut impl FnMut(PfnRange)) {
        let mut remaining = range;
        while !remaining.is_empty() {
            let not_ram = self.frames.call().first_not_ram(remaining);
            let unusable = [not_ram, self.poison_in(remaining)].into_iter().flatten();
            let unusable = unusable.min_by_key(|part| part.start());
            let end = unusable.map_or(remaining.end(), PfnRange::start);
            let usable = remaining.split_at(end).0;
            if !usable.is_empty() {
                each(usable);
            }
            remaining = remaining.split_at(unusable.map_or(end, PfnRange::end)).1;
        }
    }

    /// Undoes one [`pin`](Self::pin) of exactly this range, and wakes the reporter. Returns whether
    /// there was such a pin.
    pub fn unpin(&mut self, range: PfnRange) -> bool {
        self.frames.call().remove_pin(range)
    }
}
