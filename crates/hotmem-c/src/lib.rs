//! Hotmem for kernels in C: the functions of `hotmem.h`, in plain types and codes.
//!
//! `include/hotmem.h` is made from this crate, and `staticlib/` makes `libhotmem.a` of it. A
//! machine and the driver of a device are objects in the caller's memory. The engine's tokens stay
//! inside these objects: prepare and commit, two calls in Rust, are one call here, or a step of a
//! driver.
//!
//! Misuse that types prevent in Rust is refused here by an error code: a null pointer, a struct
//! that was not set up, a second boot, a range that wraps, a call from within a hook. Conditions
//! that only the caller can ensure are listed under `# Safety`.
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
