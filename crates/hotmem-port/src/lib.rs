//! Adapters for ports of Hotmem to existing kernels.
//!
//! An existing kernel has its own interface to frames, which differs from Hotmem's. Each type of this
//! crate bridges one difference:
//!
//! | the kernel | the type to use |
//! |---|---|
//! | registers boot memory range by range, before it allocates | [`BootRanges`] |
//! | registers memory after it has allocated | [`add_late_memory`] |
//! | uses addresses instead of frame numbers | [`LinearMap`] |
//! | numbers its CPUs only after the allocator is in use | [`ConfigurablePlatform`] |
//! | has callers that cannot try again: `Busy` is no answer for them | [`AllocRetry`] |
//! | maps memory by its own code, which allocates page tables itself | [`LateMapping`], [`TableFrames`] |
//! | takes locks in interrupt handlers | [`IrqLock`] |
//! | allocates single frames with preemption and interrupts off | [`Magazine`] |
//! | allocates single frames with only preemption off | [`CpuMagazine`] |
//! | has no reverse map for the frames that it allocates as movable | [`ReverseMap`] |
//! | has several parts that must agree before memory goes offline | [`notify::Chain`] |
//!
#![doc = include_str!("../README.md")]
#![cfg_attr(docsrs, feature(doc_cfg))]
#![no_std]

mod boot_ranges;
mod configurable_platform;
mod cpu_magazine;
mod irq_lock;
mod late_mapping;
mod late_memory;
mod linear;
mod magazine;
mod nested;
pub mod notify;
mod retry;
mod reverse_map;
mod table_frames;
#[cfg(feature = "x86_64")]
mod x86_64;

pub use boot_ranges::{BootRanges, TooManyRanges};
pub use configurable_platform::ConfigurablePlatform;
pub use cpu_magazine::CpuMagazine;
pub use irq_lock::{Interrupts, IrqLock};
pub use late_mapping::{LateMapping, Mapper};
pub use late_memory::{LateMemoryError, add_late_memory};
pub use linear::LinearMap;
pub use lock_api;
pub use magazine::Magazine;
pub use retry::AllocRetry;
pub use reverse_map::{FrameOwner, ReverseMap};
pub use table_frames::TableFrames;
