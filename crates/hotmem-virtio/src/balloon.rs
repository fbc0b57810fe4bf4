//! virtio-balloon (device 5): memory that the guest lets the host have, asked and unasked.
//!
//! One device, four conversations that have nothing to do with each other: the *balloon*, of a
//! size that the host asks for; *reports* of free memory, which the host may take until it is used
//! again; *hints* of free memory, which a migration may leave behind; *statistics*. Each is a
//! small state machine of its own with at most one request on its queue; [`Driver`] lets them take
//! turns. Section numbers in this module's comments are those of the virtio 1.3 specification.

#![expect(clippy::large_enum_variant, reason = "a report's ranges are passed on, never kept")]

mod config;
#[cfg(feature = "virtio-drivers")]
mod device;
mod driver;
mod engine;
mod features;
mod hints;
mod inflation;
mod memory;
mod message;
mod pieces;
mod queues;
mod reports;
#[cfg(feature = "virtio-drivers")]
mod start;
mod statistics;
mod status;
mod telling;
mod turn;

pub use config::RawConfig;
#[cfg(feature = "virtio-drivers")]
pub use device::{Device, Progress};
pub use driver::{Driver, Step};
pub use engine::EngineMemory;
pub use features::{Features, Poison};
pub use memory::{Memory, NextReport, Obstacle, WantedBack};
pub use message::{Message, Ranges};
pub use queues::{Numbering, Queue, QueueMissing, Queues};
#[cfg(feature = "virtio-drivers")]
pub use start::{InitError, Wanted};
pub use statistics::{MemoryStatistics, Statistic};
pub use status::{Counters, Failure, Pending, Status};

/// The device type of virtio-balloon.
pub const DEVICE_ID: u16 = 5;
