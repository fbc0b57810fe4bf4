//! Contains devices that pass all points, and deviations from them by which the suite is tested.
//!
//! A [`Model`] is a memory device or a balloon behind virtio-mmio registers, with the memory of a
//! guest. Each [`Deviation`] makes it do one thing wrongly, and names the point that must notice. A
//! [`Hostility`] makes it do what no point expects, and what every suite must survive.

mod balloon_device;
mod deviation;
mod kind;
mod memory_device;
mod mmio;
mod queue;
mod ram;

pub use deviation::{Deviation, Hostility};
pub use mmio::Model;
