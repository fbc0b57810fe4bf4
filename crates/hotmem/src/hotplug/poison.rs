//! Takes poisoned frames out of use for as long as their memory is present.

use super::Hotplug;
use crate::addr::{Pfn, PfnRange};
use crate::frames::Poisoned;
use crate::mapping::Mapping;
use crate::platform::Platform;
use crate::range_error::{RangeError, RangeErrorKind};
use crate::sync::Ordering;

impl<P: Platform, M: Mapping> Hotplug<'_, P, M> {
    /// Marks `frame` as poisoned by a hardware memory error. If the frame is free, it is out of use
    /// at once; if it is allocated, it is out of use when it is freed, and the engine calls
    /// [`Platform::drain_magazines`]. The rest of its pageblock stays in use. Offline memory with
    /// poison cannot come online, with one exception: if a shrink that took it offline is undone, it
    /// is online again without the poisoned frames. Taking memory offline ignores poison that is out
    /// of use. Removing memory forgets its poison, because memory that is added there later is other
    /// memory.
    ///
    /// Context: as for all of the control path; a machine-check handler defers the call. Cost:
    /// O(sections) once, and then a scan of [`MAX_POISONED`](crate::MAX_POISONED) entries for each
    /// free in this pageblock.
    ///
    /// # Errors
    /// [`RangeError`].
    pub fn poison(&mut self, frame: Pfn) -> Result<Poisoned, RangeError> {
        let one = PfnRange::with_len(frame, 1);
        // The limit of all frames is no frame.
        let range = one.or(PfnRange::with_len(frame, 0)).unwrap_or_default();
        let missing = RangeErrorKind::NotPresent.at(range);
        let block = self.words().block_of(frame).ok_or(missing)?;
        if block.section.present.load(Ordering::Acquire) & block.mask() == 0 {
            return Err(missing);
        }
        let mut metadata = self.frames.metadata().map(|metadata| metadata.frames);
        if let Some(metadata) = metadata.find(|frames| frames.contains(frame)) {
            return Err(RangeErrorKind::Metadata.at(metadata));
        }
        let poison = || self.frames.poison(&block, frame).map_err(|kind| kind.at(range));
        let state = poison()?;
        // A frame in a magazine counts as allocated, and would be handed out again.
        if state == Poisoned::InUse && self.frames.platform().drain_magazines() {
            return poison();
        }
        Ok(state)
    }

    /// Returns all poisoned frames, and whether each is out of use.
    pub fn poisoned(&self) -> impl Iterator<Item = (Pfn, Poisoned)> {
        self.frames.poisoned()
    }

    /// Returns the lowest poisoned frame of `range`.
    pub(super) fn poison_in(&self, range: PfnRange) -> Option<PfnRange> {
        let frame = self.frames.poisoned_in(range).map(|(frame, _)| frame).min()?;
        PfnRange::with_len(frame, 1)
    }
}
