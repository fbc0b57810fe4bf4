//! What architectures share whose kernel is a flat image, which its loader puts anywhere in RAM and passes
//! a device tree.

pub(crate) mod image;
pub(super) mod lines;
pub(super) mod smp;
pub(crate) mod stack_layout;
mod unsupported;

pub(crate) use unsupported::{IoPort, NextKernel, handle_nmis, take_bad_frame};
