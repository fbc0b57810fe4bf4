//! What a port of Hotmem to an existing kernel needs beside the engine.
//!
//! Kernels that have a frame allocator already have an interface around it, and Hotmem's is
//! another. Each type here closes one gap:
//!
//! | the kernel | here |
//! |---|---|
//! | names its boot memory range by range, before anything is allocated | [`BootRanges`] |
//! | keeps addresses, where the engine has frame numbers | [`LinearMap`] |
//! | can tell its CPUs apart only above the allocator, and after boot began | [`LatePlatform`] |
//! | knows two answers to an allocation, memory or none | [`AllocOrNone`] |
//! | maps memory by its own code, which allocates page tables for itself | [`LateMapping`], [`LentFrames`] |
//! | takes locks in interrupt handlers | [`IrqLock`] |
//!
#![doc = include_str!("../README.md")]
#![no_std]

mod boot_ranges;
mod irq_lock;
mod late_mapping;
mod late_platform;
mod lent;
mod linear;
mod retry;

pub use boot_ranges::{BootRanges, TooManyRanges};
pub use irq_lock::{Interrupts, IrqLock};
pub use late_mapping::{LateMapping, Mapper};
pub use late_platform::LatePlatform;
pub use lent::LentFrames;
pub use linear::LinearMap;
pub use lock_api;
pub use retry::AllocOrNone;
