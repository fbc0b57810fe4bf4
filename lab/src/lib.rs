//! The library of the `hotmem` command: machines in this process and under QEMU, benches, and
//! reports.

#![cfg_attr(not(feature = "bench"), allow(dead_code, reason = "benches use more of the machines"))]

// `out` comes first, because later modules use its macro `say!`.
#[macro_use]
pub mod out;

mod anonymous_file;
#[cfg(feature = "bench")]
pub mod bench;
pub mod conformance;
pub mod daxctl;
pub mod demo;
#[cfg(feature = "drmgr")]
pub mod dlpar;
pub mod guest;
pub mod hosted;
pub mod linux;
#[cfg(feature = "live")]
pub mod live;
pub mod lsmem;
pub mod microsandbox;
mod patience;
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

pub use patience::patience;

/// Compiles and runs the README's example as a doc test.
#[cfg(doctest)]
#[doc = include_str!("../../README.md")]
pub struct Readme;
