//! What architectures share whose kernel is a flat image, which its loader puts anywhere in RAM and passes
//! a device tree.

pub(crate) mod image;
pub(super) mod mmio;
pub(super) mod smp;
pub(crate) mod stack_layout;
mod unsupported;

pub(crate) use unsupported::{IoPort, NextKernel, handle_nmis, take_bad_frame};

use hotmem_guest::raised_lines::RaisedLines;

/// The lines that were raised. A PLIC and the shared interrupts of a GIC have at most 1024.
pub(super) static RAISED_LINES: RaisedLines<32> = RaisedLines::new();
