//! Hotmem for kernels in C: the functions of `hotmem.h`, in plain types and codes.
//!
//! `include/hotmem.h` is made from this crate, and `staticlib/` makes `libhotmem.a` of it. A machine
//! and the driver of a device are objects in the caller's memory. Tokens of the engine never leave
//! them: what has two halves in Rust, prepare and commit, is one call here, or a step of a driver.
//!
//! What the engine answers for in Rust by types, it answers for here by codes: a null pointer, a
//! struct that was not set up, a second boot, a range that wraps, a call from within a hook. What
//! only the caller can know is under `# Safety`.
#![cfg_attr(target_os = "none", no_std)]
#![allow(non_camel_case_types, reason = "the names of C")]

mod balloon;
mod control;
mod error;
mod explain;
mod frames;
mod hooks;
mod machine;
#[cfg(target_os = "none")]
mod panic;
mod platform;
mod slot;
mod vmem;

pub use balloon::*;
pub use control::*;
pub use error::*;
pub use frames::*;
pub use hooks::*;
pub use machine::*;
pub use vmem::*;
