//! The measured allocators. Each has one file, which implements [`Allocator`](super::Allocator) and
//! says why the allocator cannot do a case.

pub(super) mod bitmap;
pub(super) mod buddy_slab;
pub(super) mod buddy_system;
pub(super) mod hotmem;
pub(super) mod llfree;
pub(super) mod many_frames;
