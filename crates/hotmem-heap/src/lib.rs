//! A kernel heap over Hotmem's frame allocator.
//!
//! Objects of up to 3 KiB lie in slabs of one to 16 frames, larger ones in their own frames. A slab
//! is freed to [`Frames`](hotmem::Frames) with its last object, except for one slab of each size
//! that each CPU keeps; [`Heap::trim`] frees these as well. So memory without objects can be
//! unplugged.
//!
//! | file | what |
//! |---|---|
//! | `heap.rs` | the heap, and its interfaces to Rust |
//! | `hooks.rs` | the hooks of a kernel whose heap is all that uses memory |
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
