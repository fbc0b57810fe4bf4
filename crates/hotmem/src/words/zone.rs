//! Defines zones: what memory may be allocated for.

/// What memory may be allocated for.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum Zone {
    /// Anything.
    Kernel = 0,
    /// Only what can be migrated, so that the memory can be taken offline again.
    Movable = 1,
}

impl Zone {
    /// Both zones.
    pub const ALL: [Zone; 2] = [Zone::Kernel, Zone::Movable];
}
