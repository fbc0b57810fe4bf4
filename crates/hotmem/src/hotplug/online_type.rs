//! Defines the types of allocations that memory can come online for.

/// The allocations that memory comes online for.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum OnlineType {
    /// None: the memory stays offline.
    Offline,
    /// Those of the zone that the policy chooses.
    #[default]
    Online,
    /// Any allocation.
    Kernel,
    /// Movable allocations only, so that the memory can be taken offline again.
    Movable,
    /// Those of the zone that the memory was in before it went offline.
    AsBefore,
}
