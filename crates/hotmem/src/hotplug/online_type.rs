//! Defines what memory can come online for.

/// What memory comes online for.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum OnlineType {
    /// Nothing: the memory stays offline.
    Offline,
    /// The zone that the policy chooses.
    #[default]
    Online,
    /// Any allocation.
    Kernel,
    /// Movable allocations only, so that the memory can be taken offline again.
    Movable,
    /// The zone that the memory was in before it went offline.
    AsBefore,
}
