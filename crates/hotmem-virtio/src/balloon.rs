//! Contains the driver of virtio-balloon (device 5), by which the guest gives memory to the host.
//!
//! The device offers four independent services. The *balloon* holds as much memory as the host
//! requests. *Reports* name free memory, which the host may take until the guest uses it again.
//! *Hints* name free memory that a migration need not copy. *Statistics* describe the guest's
//! memory. Each service is a small state machine with at most one request on its queue; [`Driver`]
//! steps them one after another. Section numbers in this module's comments are those of the virtio 1.3
//! specification.

#![expect(
    clippy::large_enum_variant,
    reason = "the contents of a request are passed on, never stored"
)]

mod config;
#[cfg(feature = "virtio-drivers")]
mod device;
mod driver;
mod engine;
mod features;
mod frame_list;
mod hints;
mod in_flight;
mod inflate_bitmap;
mod inflation;
mod initialised;
mod lend;
mod memory;
mod message;
#[cfg(feature = "virtio-drivers")]
mod message_buffers;
mod queues;
mod reports;
#[cfg(feature = "virtio-drivers")]
mod set_up;
#[cfg(feature = "virtio-drivers")]
mod start;
mod statistics;
mod statistics_sender;
mod status;
mod step;

pub use config::RawConfig;
#[cfg(feature = "virtio-drivers")]
pub use device::{Device, Progress};
pub use driver::Driver;
pub use engine::EngineMemory;
pub use features::{Features, Poison};
pub use frame_list::{FrameList, FrameNumbers, NotListed};
pub use inflate_bitmap::InflateBitmap;
pub use memory::{DeflateRequest, Memory, Obstacle, Reason};
pub use message::{Answer, Message, Ranges};
pub use queues::{Queue, QueueMissing, QueueNumbering, Queues};
#[cfg(feature = "virtio-drivers")]
pub use start::{BalloonOptions, InitError};
pub use statistics::{MemoryStatistics, Statistic};
pub use status::{Counters, Failure, Pending, ResetCause, Status};
pub use step::{Action, Step};

/// The device type of virtio-balloon.
pub const DEVICE_ID: u16 = 5;
