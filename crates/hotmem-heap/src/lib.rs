//! A kernel heap over Hotmem's frame allocator.
//!
//! Objects of up to 3 KiB lie in slabs of one to 16 frames, larger ones in frames of their own.
//! A slab whose last object is freed goes back to [`Frames`](hotmem::Frames) at once, but for one
//! that each CPU keeps of each size; [`Heap::trim`] frees these too. So memory in which the heap has
//! nothing any more can be unplugged.
//!
//! | file | what |
//! |---|---|
//! | `heap.rs` | the heap, and its interfaces to Rust |
//! | `shard.rs` | the slabs that one CPU allocates from |
//! | `slab.rs` | objects of one size in some frames |
//! | `class.rs` | the sizes |
//!
#![doc = include_str!("../README.md")]
#![no_std]

mod class;
mod heap;
mod shard;
mod slab;

pub use heap::Heap;
pub use lock_api;
