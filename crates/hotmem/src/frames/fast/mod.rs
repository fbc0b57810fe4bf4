//! The fast paths: the allocation and the free of one frame, of a run of up to 32 frames, and of one
//! whole pageblock, by one read-modify-write each; and of a run of 33 to 256 frames, by one for each
//! word of its bitmap, and two for the hiding step.

mod ffi;
mod frame;
mod frame_near;
mod frame_or_none;
mod free_frame;
mod free_long_run;
mod free_run;
mod long_run;
mod pageblock;
mod run;

pub use ffi::{FastFree, FastPath};
pub(super) use free_frame::FreeOutcome;
