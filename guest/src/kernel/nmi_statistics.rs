//! What a run with NMIs counts.

/// The statistics of the NMIs.
pub(crate) struct NmiStatistics {
    /// The number of NMIs.
    pub(crate) count: u64,
    /// The number of NMIs that interrupted an allocation or a free.
    pub(crate) in_engine: u64,
    /// The number of allocations.
    pub(crate) allocations: u64,
}
