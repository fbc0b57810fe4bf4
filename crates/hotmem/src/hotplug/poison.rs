//! Frames that the hardware has given up: they never come back while their memory is there.

use super::Hotplug;
use crate::addr::{Pfn, PfnRange};
use crate::frames::{MAX_POISONED, Obstacle, Poisoned};
use crate::mapping::Mapping;
use crate::platform::Platform;
use crate::sync::Ordering;
use core::fmt;

/// Why a frame could not be poisoned. Nothing has changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PoisonError {
    /// There is no RAM here; device memory is its driver's to look after.
    NotPresent(Pfn),
    /// The engine keeps its own data here and cannot do without it.
    Metadata(PfnRange),
    /// It is changing hands: try again.
    Busy(Pfn),
    /// [`MAX_POISONED`] frames are poisoned already.
    TooMany(Pfn),
}

impl<P: Platform, M: Mapping> Hotplug<'_, P, M> {
    /// The hardware has given `frame` up. A free frame is out of use at once, one that is in use
    /// when it is freed; the rest of its pageblock goes on. Memory with poison that is offline is
    /// refused when it is to come online, unless a shrink took it offline and is undone: then it is
    /// online again around the poison. Going offline passes over poison that is out of use, and
    /// when the memory is removed it is forgotten: what comes there next is other memory.
    ///
    /// Context: as for all of the control path; a machine-check handler leaves it to somebody else.
    /// Cost: O(sections) once, and from then on a look at [`MAX_POISONED`] entries for each free in
    /// this pageblock.
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

    /// All poisoned frames, and what has become of them.
    pub fn poisoned(&self) -> impl Iterator<Item = (Pfn, Poisoned)> {
        self.frames.poisoned()
    }

    /// The lowest poisoned frame of `range`.
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
            PoisonError::Busy(frame) => write!(f, "{frame} is changing hands, try again"),
            PoisonError::TooMany(frame) => {
                write!(f, "{frame} would be more than {MAX_POISONED} poisoned frames")
            }
        }
    }
}

impl core::error::Error for PoisonError {}
