//! The lab behind the `hotmem` command: real machines under QEMU, benches and tables.

// Its macro is for all that follow.
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

/// The longest that a test waits for what must come: only a hang takes so long, however slow and
/// busy the machine.
#[cfg(test)]
const PATIENCE: std::time::Duration = std::time::Duration::from_secs(300);

/// The README's example, compiled and run.
#[cfg(doctest)]
#[doc = include_str!("../../README.md")]
pub struct Readme;
