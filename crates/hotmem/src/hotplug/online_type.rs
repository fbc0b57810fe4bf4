//! What memory can be put online for.

/// What memory is put online for.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum OnlineType {
    /// Nothing: it stays offline.
    Offline,
    /// Whatever the policy says; without one, for anything.
    #[default]
    Online,
    /// For anything.
    Kernel,
    /// For movable allocations only, so that it can be taken offline again.
    Movable,
    /// For what it was online for before it went offline.
    AsBefore,
}
