//! Memory hotplug for kernels that are not Linux.
//!
//! Memory is announced by a platform, added, put online, allocated, isolated, reported or taken
//! away again, each at a cost proportional to what changed and not to how much memory there is.
//! `no_std`, no heap, no locks, no code for any one architecture.
//!
//! ```text
//! announced ──add──▶ offline ──online──▶ online ──isolate──▶ isolated ──┬─ release ──▶ online
//!                                          │  ▲                         ├─ report  ──▶ online, reported
//!                                          │  └── freed                 └─ remove  ──▶ announced
//!                                          └───── allocated, mapped, migrated, unmapped
//! ```
//!
//! Two faces:
//! - [`Frames`], the allocator: `Sync`, everything `&self`, lock-free, from any context;
//! - [`Hotplug`], the control path: unique, everything `&mut self`, under whatever lock the kernel
//!   likes. It owns the kernel's [`Mapping`], which is `unsafe` to implement, and calls the kernel
//!   back through [`Hooks`], which are safe.
//!
//! No sequence of safe calls makes the engine hand out its own metadata, hand one frame to two
//! owners, or touch memory that is not mapped.
//!
//! Many machines can live in one process. A token that one of them has made, such as a [`Removal`],
//! is refused by every other, which hands it back as its error. One that is dropped says itself
//! what becomes of its memory: undone, or held and counted, never used by two.
//!
//! Units: a frame is 4 KiB, a *pageblock* 2 MiB (the unit of adding, onlining, isolating and
//! removing), a *section* 128 MiB, so that one 64-bit word answers a question about it.
//!
//! ```
//! use hotmem::{AlwaysMapped, BootMap, BootRange, Budget, Bytes, Frames, Hotplug, NoHooks, OneCpu};
//! use hotmem::{OnlineType, Pfn, PfnRange, Shrink, Settings, ShrinkOptions, Shrunk, State, AllocRequest};
//!
//! static FRAMES: Frames<OneCpu> = Frames::new(OneCpu);
//!
//! # let bytes = 64 << 20;
//! # let layout = std::alloc::Layout::from_size_align(bytes, 4096)?;
//! # // SAFETY: it is a layout of some bytes.
//! # let base = unsafe { std::alloc::alloc_zeroed(layout) };
//! // The firmware's map: 32 MiB of RAM, of which the kernel's image has the second megabyte.
//! let ram = [BootRange { start: 0, len: Bytes::mib(32) }];
//! let map = BootMap {
//!     reserved: &[BootRange { start: 1 << 20, len: Bytes::mib(1) }],
//!     ..BootMap::of_ram(&ram)
//! };
//! // SAFETY: 64 MiB are mapped at `base`, and nobody else uses what is not reserved.
//! let mut hotplug = unsafe {
//!     let mapping = AlwaysMapped::new(base, PfnRange::from_bytes(0, Bytes::mib(64))?);
//!     Hotplug::bootstrap(&FRAMES, mapping, &map)?
//! };
//!
//! // A device says where memory may come, and then brings some.
//! let region = PfnRange::from_bytes(32 << 20, Bytes::mib(32))?;
//! hotplug.announce(region)?;
//! let plugged = PfnRange::from_bytes(32 << 20, Bytes::mib(16))?;
//! hotplug.add(plugged)?;
//! hotplug.online(plugged, OnlineType::Movable, &mut NoHooks)?;
//!
//! let huge_page = FRAMES.alloc(AllocRequest::order(9).movable())?;
//! assert!(plugged.covers(huge_page.range()));
//! huge_page.free();
//!
//! // The device wants it back: whatever can go goes, from the top down.
//! let mut shrink = Shrink::new(ShrinkOptions::all_of(plugged));
//! while let Shrunk::Ready(removal) = shrink.poll(&mut hotplug, &mut NoHooks, Budget::UNLIMITED) {
//!     // Here the device is told to take `removal.range()`, and says that it has.
//!     hotplug.commit_remove(removal).expect("it is this machine's");
//! }
//! assert_eq!(hotplug.state_at(plugged.start(), plugged.end()), (plugged, State::Absent));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Where to read on: `words/` is the heart (the words, the block state, the claim, and what finds
//! them), `frames/` allocates, `isolate/` takes memory out of use, `hotplug/` walks the road.
#![no_std]
#![allow(
    clippy::result_large_err,
    reason = "a token that is refused is handed back, without a heap"
)]
// For other crates' models, in which nothing of this one's is exercised.
#![cfg_attr(all(loom, not(test)), allow(dead_code, unused_imports))]

#[cfg(loom)]
extern crate std;

#[cfg(not(target_has_atomic = "64"))]
compile_error!(
    "hotmem needs atomic operations on 64 bits (`target_has_atomic = \"64\"`), which this target \
     does not have"
);
#[cfg(not(any(target_pointer_width = "32", target_pointer_width = "64")))]
compile_error!("hotmem needs pointers of 32 or 64 bits");

mod addr;
mod frames;
pub mod geometry;
mod hooks;
mod hotplug;
mod isolate;
mod known;
#[cfg(all(loom, test))]
mod loom_tests;
mod magazine;
mod mapping;
pub mod notify;
mod origin;
mod platform;
pub mod report;
#[cfg(not(loom))]
mod reverse_map;
mod sync;
mod token;
mod words;

pub use addr::{AddrError, Bytes, Pfn, PfnRange};
pub use frames::{
    AllocError, AllocRequest, Allocation, BadRequest, Contents, Counts, Fault, Frames, FreeError,
    FreeErrorKind, LendError, MAX_PINS, MAX_POISONED, Metadata, PinError, Poisoned,
};
pub use hooks::{Hooks, Migration, NoHooks, Veto};
pub use hotplug::{
    AddError, AddRequest, Addition, Announce, AnnounceError, Blocker, Budget, DeviceError, Group,
    Hotplug, LeaveError, MemoryBlock, MemoryBlockState, Offline, OfflineError, OnlineError,
    OnlineType, PoisonError, Policy, Progress, RegionId, Removal, RemoveError, Settings, Shrink,
    ShrinkOptions, Shrunk, State, Why, WithdrawError, ZoneInfo,
};
#[cfg(not(loom))]
pub use hotplug::{BootError, BootMap, BootRange, FallbackError};
pub use isolate::{InUse, IsolateError, Isolation, MarkError};
pub use known::{Known, first_violation, violated_invariants};
pub use magazine::Magazine;
pub use mapping::{AlwaysMapped, Mapping};
pub use origin::MachineId;
pub use platform::{OneCpu, Platform};
#[cfg(not(loom))]
pub use reverse_map::{Owner, ReverseMap};
pub use words::{MAX_NODES, NodeId, Zone};
