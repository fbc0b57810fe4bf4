//! Counts frames by their state, lists the engine's own metadata, and checks that both are consistent.

mod allocated;
mod bloom_filter;
mod counts;
mod headroom;
mod metadata;
mod validate;

pub use counts::Counts;
pub use metadata::Metadata;
pub(crate) use metadata::{bitmaps_of, descriptor_pageblocks};
pub use validate::Inconsistency;
