//! Memory hotplug as a library.
#![no_std]

pub mod addr;
mod frames;
pub mod geometry;
mod hooks;
mod hotplug;
mod isolate;
mod platform;
mod region;
mod section;
mod sync;
mod tree;

pub use addr::{AddrError, Bytes, Pfn, PfnRange};
pub use frames::{AllocError, BadWant, Counts, Fault, Frames, FreeError, FreeErrorKind, Want};
pub use hooks::{Hooks, Migration, NoHooks, Spare, Veto};
pub use hotplug::*;
pub use isolate::{InUse, IsolateError, Isolation};
pub use platform::{DirectMap, OneCpu, Platform};
pub use region::MAX_REGIONS;
