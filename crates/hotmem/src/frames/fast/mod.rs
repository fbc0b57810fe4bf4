//! The fast paths: the allocation and the free of one frame and of one whole pageblock, by one
//! read-modify-write each.

mod found_frame;
mod frame;
mod free_frame;
mod other_languages;
mod pageblock;

pub(super) use free_frame::FreeOutcome;
pub use other_languages::{FastFree, FastPath};
