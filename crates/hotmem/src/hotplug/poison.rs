//! Takes poisoned frames out of use for as long as their memory is present.

use super::Hotplug;
use crate::addr::{Pfn, PfnRange};
use crate::frames::{MAX_POISONED, Obstacle, Poisoned};
use crate::mapping::Mapping;
use crate::platform::Platform;
use crate::sync::Ordering;
use core::fmt;

/// The reason why a frame could not be poisoned. The failed call changed nothing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PoisonError {
    /// The frame is not RAM. Poison in device memory is handled by its driver.
    NotPresent(Pfn),
    /// The engine keeps its own data in this range, and cannot free it.
    Metadata(PfnRange),
    /// The frame is being allocated or freed: try again.
    Busy(Pfn),
    /// [`MAX_POISONED`] frames are poisoned already.
    TooMany(Pfn),
}

impl<P: Platform, M: Mapping> Hotplug<'_, P, M> {
    /// Marks `frame` as poisoned by a hardware memory error. If the frame is free, it is out of use
    /// at once; if it is allocated, it is out of use when it is freed. The rest of its pageblock
    /// stays in use. Offline memory with poison cannot come online, with one exception: if a shrink
    /// that took it offline is undone, it is online again without the poisoned frames. Taking
    /// memory offline ignores poison that is out of use. Removing memory forgets its poison,
    /// because memory that is added there later is other memory.
    ///
    /// Context: as for all of the control path; a machine-check handler defers the call. Cost:
    /// O(sections) once, and then a scan of [`MAX_POISONED`] entries for each free in this
    /// pageblock.
    ///
    /// # Errors
    /// [`PoisonError`].
    pub fn poison(&mut self, frame: Pfn) -> Result<Poisoned, PoisonError> {
        let missing = PoisonError::NotPresent(frame);
        let block = self.words().block_of(frame).ok_or(missing)?;
        if block.section.present.load(Ordering::Acquire) & block.mask() == 0 {
            return Err(missing);
        }
        let mut metadata = self.frames.metadata().map(|metadata| metadata.frames);
        if let Some(metadata) = metadata.find(|frames| frames.contains(frame)) {
            return Err(PoisonError::Metadata(metadata));
        }
        self.frames.poison(&block, frame).map_err(|obstacle| match obstacle {
            Obstacle::TableFull => PoisonError::TooMany(frame),
            Obstacle::Busy => PoisonError::Busy(frame),
        })
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

impl fmt::Display for PoisonError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PoisonError::NotPresent(frame) => write!(f, "{frame} is no RAM"),
            PoisonError::Metadata(range) => write!(f, "{range} holds the engine's own data"),
            PoisonError::Busy(frame) => write!(f, "{frame} is being allocated or freed, try again"),
            PoisonError::TooMany(frame) => {
                write!(f, "{frame} would be more than {MAX_POISONED} poisoned frames")
            }
        }
    }
}

impl core::error::Error for PoisonError {}
