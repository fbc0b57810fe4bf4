//! A kernel heap over Hotmem's frame allocator.
//!
//! Objects of up to 3 KiB lie in slabs of one to 16 frames, larger ones in their own frames. When
//! its last object is freed, a slab is freed to [`Frames`](hotmem::Frames), except for one slab of
//! each size that each CPU keeps. [`Heap::trim`] frees these as well, so that memory without
//! objects can be unplugged.
//!
//! | file | what |
//! |---|---|
//! | `heap.rs` | the heap, and its interfaces to Rust |
//! | `hooks.rs` | hooks for a kernel in which only the heap allocates frames |
//! | `shard.rs` | the slabs that one CPU allocates from |
//! | `slab.rs` | objects of one size in some frames |
//! | `class.rs` | the sizes |
//!
#![doc = include_str!("../README.md")]
#![no_std]

mod class;
mod heap;
mod hooks;
mod shard;
mod slab;

pub use heap::Heap;
pub use lock_api;
