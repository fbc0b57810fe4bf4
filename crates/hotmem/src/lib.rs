//! Memory hotplug for kernels that are not Linux.
//!
//! A platform announces memory. The kernel adds it, puts it online, allocates it, isolates it, and
//! reports it to the host or removes it. Each step costs time in proportion to the memory that it
//! changes, not to the memory that the machine has. The crate is `no_std`; it has no heap, no locks
//! and no code for any one architecture.
//!
//! ```text
//! announced ──add──▶ offline ──online──▶ online ──isolate──▶ isolated ──┬─ release ──▶ online
//!                                          │  ▲                         ├─ report  ──▶ online, reported
//!                                          │  └── freed                 └─ remove  ──▶ announced
//!                                          └───── allocated, mapped, migrated, unmapped
//! ```
//!
//! The crate has two interfaces:
//! - [`Frames`], the allocator, is `Sync` and lock-free: its methods take `&self` and may be called
//!   from any context;
//! - [`Hotplug`], the control path, is unique: its methods take `&mut self`, so the kernel puts it
//!   behind a lock of its choice. It owns the kernel's [`Map`], which is `unsafe` to implement,
//!   and calls the kernel back through [`Hooks`], which are safe.
//!
//! No sequence of safe calls makes the engine hand out its own metadata, hand one frame to two
//! owners, or touch memory that is not mapped.
//!
//! One process can hold many instances. A *token* is a value that stands for a step in progress,
//! such as a [`Removal`]. An instance refuses a token that another instance made, and returns it as
//! the error. The documentation of each token says what happens to its memory if the token is
//! dropped: the step is undone, or the memory stays held and counted.
//!
//! Units: a frame is 4 KiB, a *pageblock* 2 MiB (the unit of adding, onlining, isolating and
//! removing), a *section* 128 MiB, so that one 64-bit word answers a question about it.
//!
//! ```
//! use hotmem::{AlwaysMapped, BootMap, BootRange, Budget, Bytes, Frames, Hotplug, NoHooks, OneCpu};
//! use hotmem::{AllocRequest, OnlineType, Pfn, PfnRange, Progress, Shrink, State};
//!
//! static FRAMES: Frames<OneCpu> = Frames::new(OneCpu);
//!
//! # let bytes = 64 << 20;
//! # let layout = std::alloc::Layout::from_size_align(bytes, 4096)?;
//! # // SAFETY: the size of `layout` is not 0.
//! # let base = unsafe { std::alloc::alloc_zeroed(layout) };
//! // The firmware's map: 32 MiB of RAM, with the kernel's image in the second MiB.
//! let ram = [BootRange { start: 0, len: Bytes::mib(32) }];
//! let map = BootMap {
//!     reserved: &[BootRange { start: 1 << 20, len: Bytes::mib(1) }],
//!     ..BootMap::from(&ram)
//! };
//! // SAFETY: 64 MiB are mapped at `base`, and no other code uses RAM that is not reserved.
//! let mut hotplug = unsafe {
//!     let mapping = AlwaysMapped::new(base, PfnRange::from_bytes(0, Bytes::mib(64))?);
//!     Hotplug::bootstrap(&FRAMES, mapping, map)?
//! };
//!
//! // A device says where it may plug memory, and then plugs 16 MiB.
//! let region = PfnRange::from_bytes(32 << 20, Bytes::mib(32))?;
//! hotplug.announce(region)?;
//! let plugged = PfnRange::from_bytes(32 << 20, Bytes::mib(16))?;
//! hotplug.add(plugged)?;
//! hotplug.online(plugged, OnlineType::Movable, &mut NoHooks)?;
//!
//! let huge_page = FRAMES.alloc(AllocRequest::order(9).movable())?;
//! assert!(plugged.covers(huge_page.range()));
//! drop(huge_page);
//!
//! // The device requests its memory back: take as much as possible offline, from the top down.
//! let mut shrink = Shrink::new(plugged);
//! while let Progress::Ready(removal) = shrink.poll(&mut hotplug, &mut NoHooks, Budget::UNLIMITED) {
//!     // Here the kernel offers `removal.range()` to the device, which acknowledges.
//!     hotplug.commit_remove(removal);
//! }
//! assert_eq!(hotplug.state_at(plugged.start(), plugged.end()), (plugged, State::Absent));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! The source: `words/` has the core (the words, the block states, the claim, the search),
//! `frames/` allocates, `isolate/` keeps memory from being allocated, and `hotplug/` is the control
//! path.
#![no_std]
#![allow(
    clippy::result_large_err,
    reason = "a refused token is returned as the error, and there is no heap to box it"
)]
// Loom models of other crates compile this crate, and use none of its code.
#![cfg_attr(all(loom, not(test)), allow(dead_code, unused_imports))]

#[cfg(any(loom, hotmem_atomics = "counted"))]
extern crate std;

#[cfg(not(target_has_atomic = "64"))]
compile_error!(
    "hotmem needs atomic operations on 64 bits (`target_has_atomic = \"64\"`), which this target \
     does not have"
);
#[cfg(not(any(target_pointer_width = "32", target_pointer_width = "64")))]
compile_error!("hotmem needs pointers of 32 or 64 bits");

mod addr;
mod blocker;
mod descriptors;
mod frames;
pub mod geometry;
mod hooks;
mod hotplug;
mod invariant;
#[cfg_attr(not(feature = "internals"), allow(unreachable_pub, reason = "tests call these items"))]
mod isolate;
#[cfg(all(loom, test))]
mod loom_tests;
mod mapping;
mod origin;
mod outlined;
mod platform;
mod progress;
mod range_error;
pub mod report;
mod sync;
mod token;
mod words;

pub use addr::{AddrError, Bytes, Pfn, PfnRange};
pub use blocker::{Blocker, BlockerKind};
pub use descriptors::Describe;
#[cfg(not(loom))]
pub use frames::LentMemory;
pub use frames::{
    AllocError, AllocRequest, Allocation, BadRequest, Contents, Counts, FastFree, FastPath, Frames,
    Inconsistency, MAX_PINS, Metadata, NodeChoice, Poisoned,
};
pub use hooks::{Hooks, Migration, NoHooks};
pub use hotplug::{
    AddError, AddRequest, Addition, Announce, AnnounceError, Budget, Group, Hotplug, Offline,
    OnlineType, Policy, RegionId, Removal, Settings, Shrink, ShrinkOptions, State, ZoneInfo,
    ZonePart,
};
#[cfg(not(loom))]
pub use hotplug::{BootError, BootMap, BootRange};
#[cfg(feature = "internals")]
#[doc(hidden)]
pub use hotplug::{MemoryBlock, MemoryBlockState};
pub use invariant::{Violations, violated_invariants};
#[cfg(feature = "internals")]
#[doc(hidden)]
pub use isolate::Isolation;
pub use mapping::{AlwaysMapped, Map, TABLE_RESERVE};
pub use platform::{OneCpu, Platform};
pub use progress::Progress;
pub use range_error::{RangeError, RangeErrorKind, Veto};
#[cfg(hotmem_atomics = "counted")]
pub use sync::counted;
pub use words::{MAX_NODES, NodeId, Zone};
