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
//!   behind a lock of its choice. It owns the kernel's mapping.
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
//! # Begin here
//!
//! These calls are enough to plug memory, use it and unplug it. The example above makes all of them.
//!
//! | call | what it does |
//! |---|---|
//! | [`Hotplug::bootstrap`] | starts an instance with the firmware's memory map |
//! | [`Hotplug::announce`] | says that a platform may plug memory in a range |
//! | [`Hotplug::add`] | maps memory that was plugged |
//! | [`Hotplug::online`] | lets the allocator have it |
//! | [`Frames::alloc`] | allocates frames by an [`AllocRequest`]; dropping the [`Allocation`] frees them |
//! | [`Shrink::poll`], [`Hotplug::commit_remove`] | take memory offline from the top down, and remove it |
//!
//! A kernel that stores frames by number, for example in page tables, converts an allocation by
//! [`Allocation::into_raw`], and frees the frames by [`Frames::free_raw`].
//!
//! The engine reaches the kernel through traits. For each there is an implementation to begin with.
//!
//! | trait | what the kernel says by it | to begin with |
//! |---|---|---|
//! | [`Platform`] | which CPU and which node the caller runs on | [`OneCpu`] |
//! | [`Map`], `unsafe` to implement | how memory is mapped and unmapped | [`AlwaysMapped`] |
//! | [`Describe`], `unsafe` to implement | how the descriptors of RAM are written, if it has any | none |
//! | [`Hooks`] | whether memory may go online or offline, and how data is migrated | [`NoHooks`] |
//!
//! # For drivers
//!
//! A driver asks a device between two steps of a change, goes on later, or acts on a part.
//!
//! | to | calls |
//! |---|---|
//! | add memory that the device may still refuse | [`Hotplug::prepare_add`], [`Hotplug::commit_add`] |
//! | take one range offline, in steps | [`Hotplug::offline`], [`Offline::poll`], [`Offline::cancel`] |
//! | take offline what can go, in steps | [`Shrink::new`], [`Shrink::poll`], [`Shrink::cancel`] |
//! | remove memory that the device may still refuse | [`Hotplug::prepare_remove`], [`Removal::split_at`], [`Hotplug::commit_remove`], [`Hotplug::commit_remove_except`], [`Hotplug::abandon_remove`] |
//! | remove memory without a device | [`Hotplug::remove`] |
//! | find out what a range is | [`Hotplug::state_at`], [`Hotplug::regions`], [`Hotplug::nodes`], [`Frames::node_of`] |
//! | end an announcement | [`Hotplug::withdraw`] |
//! | keep memory for a device that accesses it | [`Hotplug::pin`], [`Hotplug::unpin`] |
//! | use a range as device memory, or as RAM again | [`AddRequest::device`], [`Hotplug::device_to_ram`], [`Hotplug::ram_to_device`], [`Hotplug::detach`] |
//! | lend frames to the host, as a balloon does | [`LentMemory`] |
//! | report free memory to the host | [`report`] |
//! | take frames with errors out of use | [`Hotplug::poison`] |
//! | allocate and free many single frames at once | [`Frames::alloc_many`], [`Frames::free_many`] |
//! | find any free run, however long that takes | [`Frames::alloc_contiguous`] |
//! | keep free memory filled with a word | [`Frames::set_contents`], [`Frames::contents`], [`Frames::fill_and_free_raw`] |
//! | change the kernel's settings or its mapping | [`Hotplug::settings`], [`Hotplug::mapping_mut`] |
//! | allocate by code in another language | [`FastPath`] |
//!
//! # Diagnostics
//!
//! These calls change nothing.
//!
//! | to find out | calls |
//! |---|---|
//! | how much memory is free, used, isolated or reported | [`Frames::counts`], [`Frames::allocated_frames`] |
//! | what a zone spans, and whether it is contiguous | [`Hotplug::zone`] |
//! | which memory of a zone is online, and how much of it is in use | [`Hotplug::online_runs`], [`Hotplug::occupancy`] |
//! | why memory could not go offline | [`Blocker`], which [`Progress::Pending`] has |
//! | where the engine keeps its metadata | [`Frames::metadata`] |
//! | which frames are poisoned | [`Frames::poisoned`] |
//! | how much was reported to the host | [`Reporter::statistics`](report::Reporter::statistics) |
//! | whether the engine is consistent | [`Frames::validate`], [`violated_invariants`] |
//!
//! # The source
//!
//! `words/` has the core (the words, the block states, the claim, the search), `frames/` allocates,
//! `isolate/` keeps memory from being allocated, and `hotplug/` is the control path.
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
