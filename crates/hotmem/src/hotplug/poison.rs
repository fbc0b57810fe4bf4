//! Quarantines poisoned frames for as long as their memory is present.

use super::Hotplug;
use crate::addr::{Pfn, PfnRange};
#[cfg(doc)]
use crate::blocker::BlockerKind;
use crate::frames::Poisoned;
use crate::mapping::Map;
use crate::platform::Platform;
use crate::range_error::{RangeError, RangeErrorKind};
use crate::sync::Ordering;

impl<P: Platform, M: Map> Hotplug<'_, P, M> {
    /// Marks `frame` as poisoned by a hardware memory error. A free frame is
    /// [quarantined](Poisoned::Quarantined) at once, and an allocated frame when it is freed.
    /// Because the frame may be in a magazine, the engine calls [`Platform::drain_magazines`]. The
    /// other frames of its pageblock can still be allocated.
    ///
    /// A quarantined frame does not keep its memory from going offline, and memory comes online
    /// without its poisoned frames. If the frame is [in use](Poisoned::InUse), the kernel should
    /// take it from its owner and free it: no hook is asked to migrate it, and its memory cannot go
    /// offline before ([`Poisoned`](crate::BlockerKind::Poisoned)). A removal forgets the poisoned frames of the
    /// memory, because memory that is added in the same place later is different memory.
    /// [`Frames::poisoned`](crate::Frames::poisoned) lists all poisoned frames.
    ///
    /// Context: that of all methods of [`Hotplug`]; a machine-check handler must defer the call.
    /// Cost: O(sections + poisoned frames). After the call, each free in this pageblock, each
    /// release of an isolation and each onlining reads the table of poisoned frames. There may be
    /// any number of poisoned frames; the table has space for 256, and takes a frame of kernel
    /// memory, which is then metadata, for each 511 more.
    ///
    /// # Errors
    /// [`RangeError`].
    pub fn poison(&mut self, frame: Pfn) -> Result<Poisoned, RangeError> {
        let one = PfnRange::with_len(frame, 1);
        // No frame has the number `Pfn::LIMIT`, so that number makes an empty range.
        let range = one.or(PfnRange::with_len(frame, 0)).unwrap_or_default();
        let not_present = RangeErrorKind::NotPresent.at(range);
        let block = self.words().block_of(frame).ok_or(not_present)?;
        let is_present = block.section().present.load(Ordering::Acquire) & block.mask() != 0;
        if !is_present || self.frames.call().first_not_ram(range).is_some() {
            return Err(not_present);
        }
        let mut metadata = self.frames.metadata().map(|metadata| metadata.frames);
        if let Some(metadata) = metadata.find(|frames| frames.contains(frame)) {
            return Err(RangeErrorKind::Metadata.at(metadata));
        }
        let poison = || self.frames.call().poison(block, frame).map_err(|kind| kind.at(range));
        let state = poison()?;
        // If the frame is in a magazine, it counts as allocated and could be allocated again: drain
        // the magazines and try once more.
        if state == Poisoned::InUse && self.frames.platform().drain_magazines() {
            return poison();
        }
        Ok(state)
    }

    /// Returns the lowest poisoned frame of `range`.
    pub(super) fn poison_in(&self, range: PfnRange) -> Option<PfnRange> {
        let frame = self.frames.call().poisoned_in(range).map(|(frame, _)| frame).min()?;
        PfnRange::with_len(frame, 1)
    }
}
