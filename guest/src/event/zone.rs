//! A zone, as an event tells of it.

use core::fmt;
use hotmem::ZoneInfo;
use hotmem::geometry::FRAME_SIZE;

/// The zone that a device's memory is in, and how often it was contiguous.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ZoneReport {
    /// `low`, `kernel` or `movable`.
    pub name: &'static str,
    /// What the engine says of it.
    pub info: ZoneInfo,
    /// How often the engine was asked, once after each change.
    pub asked: u64,
    /// How often it said that the zone is contiguous.
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
