//! Counts frames by their state, lists metadata, and checks all of it.

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
