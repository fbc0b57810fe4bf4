//! Defines the zone in a `Resized` event.

use core::fmt;
use hotmem::ZoneInfo;
use hotmem::geometry::FRAME_SIZE;

/// The zone of a device's memory, and how often it was contiguous.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ZoneReport {
    /// `low`, `kernel` or `movable`.
    pub name: &'static str,
    /// The engine's information about the zone.
    pub info: ZoneInfo,
    /// The number of queries, one after each change.
    pub asked: u64,
    /// The number of queries that found the zone contiguous.
    pub contiguous: u64,
}

impl fmt::Display for ZoneReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ZoneReport { name, info, asked, contiguous } = self;
        write!(
            f,
            r#"{{"name":"{name}","spanned":{},"online":{},"described_holes":{},"asked":{asked},"contiguous":{contiguous}}}"#,
            info.spanned.bytes().0,
            info.online * FRAME_SIZE,
            info.described_holes * FRAME_SIZE
        )
    }
}
