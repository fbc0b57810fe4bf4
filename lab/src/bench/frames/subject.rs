//! Names the measured allocators.

use super::value_name::value_name;
use std::fmt;

/// An allocator that can be measured.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
pub(super) enum Subject {
    /// The engine, in a hosted machine
    Hotmem,
    /// The engine through a magazine of 64 frames for each thread
    HotmemMagazine,
    /// The engine through a magazine of 64 frames for each CPU, which interrupts may use as well
    HotmemCpuMagazine,
    /// The engine, where one call allocates 64 separate runs (a batch), and one call frees them
    HotmemBatches,
    /// LLFree with a reservation for each CPU, if `lab/llfree` was built
    #[value(name = "LLFree")]
    Llfree,
    /// The page allocator of the crate of this name, behind a spin lock
    BuddySlabAllocator,
    /// The crate of this name, behind a spin lock
    #[value(name = "buddy_system_allocator")]
    BuddySystemAllocator,
    /// The crate of this name, behind a spin lock
    BitmapAllocator,
    /// Two compare-exchanges of a word that no other thread uses
    Limit,
}

impl fmt::Display for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        value_name(self, f)
    }
}
