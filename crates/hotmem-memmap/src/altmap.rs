//! Places descriptors on the device that they describe.

use crate::layout::MapLayout;
use core::fmt;
use hotmem_addr::{PfnRange, geometry::PAGEBLOCK_FRAMES};

/// A device's memory, divided into a part that its driver keeps, a part that holds the map, and the
/// data that the map describes. No RAM is then needed for descriptors.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Altmap {
    map: PfnRange,
    data: PfnRange,
}

/// The reason why a device cannot hold its own map.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AltmapError {
    /// No memory would be left for data.
    NotEnoughFree {
        /// The device.
        device: PfnRange,
        /// The frames that the map takes.
        map_frames: u64,
    },
}

impl Altmap {
    /// Divides `device` into `reserved` frames at its start, then the map, then data. The data
    /// begin and end at a multiple of a pageblock and of the compounds' size.
    ///
    /// # Errors
    /// [`AltmapError`] if no whole compound is left for data.
    pub fn carve(
        device: PfnRange,
        reserved: u64,
        layout: &MapLayout,
    ) -> Result<Altmap, AltmapError> {
        let align = layout.compound().frames().max(PAGEBLOCK_FRAMES as u64);
        // The map of the whole device is at least as large as that of the data.
        let map_frames = layout.frames_needed(device);
        let no_room = AltmapError::NotEnoughFree { device, map_frames };
        let start = device.start().checked_add(reserved).ok_or(no_room)?;
        let map = PfnRange::with_len(start, map_frames).ok_or(no_room)?;
        let data = PfnRange::new(map.end(), device.end()).ok_or(no_room)?.align_inward(align);
        if data.is_empty() { Err(no_room) } else { Ok(Altmap { map, data }) }
    }

    /// Returns the frames that hold the map, as many as [`MapLayout::frames_needed`] of the data or
    /// more.
    #[must_use]
    pub const fn map(&self) -> PfnRange {
        self.map
    }

    /// Returns the frames that are described.
    #[must_use]
    pub const fn data(&self) -> PfnRange {
        self.data
    }
}

impl fmt::Display for AltmapError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let AltmapError::NotEnoughFree { device, map_frames } = self;
        write!(f, "{device} has no room for data behind {map_frames} frames of descriptors")
    }
}

impl core::error::Error for AltmapError {}
