//! Contains devices that pass all points, and deviations from them by which the suite is tested.
//!
//! A [`Model`] is a memory device or a balloon behind virtio-mmio registers, with the memory of a
//! guest. Each [`Deviation`] makes it do one thing wrongly, and names the point that must notice. A
//! [`Behaviour`] makes it do what the suite must tolerate, or survive.

mod balloon_device;
mod deviation;
mod interrupts;
mod kind;
mod memory_device;
mod mmio;
mod queue;
mod ram;

pub use deviation::{Behaviour, Deviation};
pub use mmio::Model;
