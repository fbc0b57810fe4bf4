//! Hotmem for kernels in C: the functions of `hotmem.h`, in plain types and codes.
//!
//! `cargo xtask header` generates `include/hotmem.h` from this crate, and `staticlib/` builds
//! `libhotmem.a` from it. A machine and the driver of a device are objects in the caller's memory.
//! The engine's tokens stay inside these objects. Where Rust has two calls, prepare and commit, C
//! has one call, or one step of a driver.
//!
//! In C, calls return an error code for misuse that Rust's types prevent: a null pointer, a struct
//! that was not set up, a second boot, a range that wraps, a call from within a hook. `# Safety`
//! lists the conditions that only the caller can ensure.
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
