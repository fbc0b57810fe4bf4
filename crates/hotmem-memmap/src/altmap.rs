//! Divides the memory of a device so that the device holds its own descriptors.

use crate::layout::MapLayout;
use core::fmt;
use hotmem_addr::{PfnRange, geometry::PAGEBLOCK_FRAMES};

/// A device's memory, divided into a part that the driver reserves, a part that holds the map, and the
/// data that the map describes. So the descriptors need no RAM.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Altmap {
    map: PfnRange,
    data: PfnRange,
}

/// The reason why a device cannot hold its own map.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum AltmapError {
    /// The reserved frames and the map leave no whole compound for data.
    DeviceTooSmall {
        /// The frames of the device.
        device: PfnRange,
        /// The number of frames that the map needs.
        map_frames: u64,
    },
}

impl Altmap {
    /// Divides `device` into `reserved` frames at its start, then the map, then the data. The data
    /// begin and end at a multiple of the pageblock size and of the compound size.
    ///
    /// # Errors
    /// [`AltmapError`] if no whole compound remains for data.
    pub fn carve(
        device: PfnRange,
        reserved: u64,
        layout: &MapLayout,
    ) -> Result<Altmap, AltmapError> {
        let align = layout.compound().frames().max(PAGEBLOCK_FRAMES as u64);
        // Reserve a map for the whole device, which is at least as large as the map of the data.
        let map_frames = layout.frames_needed(device);
        let too_small = AltmapError::DeviceTooSmall { device, map_frames };
        let start = device.start().checked_add(reserved).ok_or(too_small)?;
        let map = PfnRange::with_len(start, map_frames).ok_or(too_small)?;
        let data = PfnRange::new(map.end(), device.end()).ok_or(too_small)?.align_inward(align);
        if data.is_empty() { Err(too_small) } else { Ok(Altmap { map, data }) }
    }

    /// Returns the frames that hold the map: at least as many as [`MapLayout::frames_needed`] returns
    /// for the data.
    #[must_use]
    pub const fn map(&self) -> PfnRange {
        self.map
    }

    /// Returns the frames that the map describes.
    #[must_use]
    pub const fn data(&self) -> PfnRange {
        self.data
    }
}

impl fmt::Display for AltmapError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let AltmapError::DeviceTooSmall { device, map_frames } = self;
        write!(f, "{device} has no room for data behind {map_frames} frames of descriptors")
    }
}

impl core::error::Error for AltmapError {}
