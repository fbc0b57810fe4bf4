//! The lab behind the `hotmem` command: real machines under QEMU, benches and tables.

// First, because all later modules use its macro.
#[macro_use]
pub mod out;

pub mod bench;
pub mod dlpar;
pub mod guest;
pub mod hosted;
pub mod linux;
#[cfg(feature = "live")]
pub mod live;
pub mod lsmem;
pub mod plot;
pub mod port;
pub mod progress;
pub mod pseries;
pub mod qemu;
#[cfg(feature = "report")]
pub mod report;
pub mod resident;
pub mod size;
pub mod table;
pub mod vm;
pub mod xen;

/// The longest wait of a test for an event that must happen. Even on a slow and busy machine only a
/// hang takes so long.
#[cfg(test)]
const PATIENCE: std::time::Duration = std::time::Duration::from_secs(300);

/// The README's example, compiled and run.
#[cfg(doctest)]
#[doc = include_str!("../../README.md")]
pub struct Readme;
