//! Tests the C interface: boot, frames, plugging and unplugging, devices, and the error codes for
//! misuse.

mod control;
mod cut_balloon;
mod cut_virtio_mem;
mod devices;
mod frames;
mod initialised;
mod instance;
mod missing_frames;
mod misuse;
mod poison;
mod withdrawal;
mod zeroed;
