//! A kernel heap over Hotmem's frame allocator.
//!
//! Objects of up to 3 KiB lie in slabs of one to 16 frames. Larger objects are allocated as whole
//! frames. When the last object of a slab is freed, the slab is freed to
//! [`Frames`](hotmem::Frames), but each CPU keeps one slab of each size. [`Heap::trim`] frees these
//! slabs as well, so that memory without objects can be unplugged.
//!
//! | file | contents |
//! |---|---|
//! | `heap.rs` | the heap, and Rust's allocator traits for it |
//! | `frame_source.rs` | memory for the heap talc (feature `talc`) |
//! | `hooks.rs` | hooks for a kernel in which only the heap allocates frames |
//! | `shard.rs` | the slabs that one CPU allocates from |
//! | `slab.rs` | a slab: objects of one size in a few frames |
//! | `class.rs` | the size classes of objects |
//!
#![doc = include_str!("../README.md")]
#![cfg_attr(docsrs, feature(doc_cfg))]
#![no_std]

mod class;
#[cfg(feature = "talc")]
mod frame_source;
mod heap;
mod hooks;
mod shard;
mod slab;

#[cfg(feature = "talc")]
pub use frame_source::FrameSource;
pub use heap::Heap;
pub use lock_api;
