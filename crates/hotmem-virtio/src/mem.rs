//! Contains the driver of virtio-mem (device 24), by which the host plugs and unplugs memory in
//! blocks.
//!
//! The device has a region of addresses, divided into blocks, and a requested size. The driver
//! plugs blocks from the bottom up and unplugs them from the top down until the requested size is
//! reached. It sends one request at a time, as large as the protocol allows. Section numbers in
//! this module's comments are those of the virtio 1.3 specification.

mod answer;
mod config;
mod config_error;
#[cfg(feature = "virtio-drivers")]
mod device;
mod driver;
mod features;
mod hotplug;
#[cfg(feature = "virtio-drivers")]
mod hotplug_device;
mod in_flight;
mod leftover;
mod memory;
mod offline_search;
mod reachable;
mod reason;
mod refused;
mod region;
mod remaining;
mod request;
mod resize;
mod resolution;
mod resolve;
#[cfg(feature = "virtio-drivers")]
mod set_up;
mod start;
mod status;
mod sync;
mod walk;
mod withdraw;

pub use config::{Config, RawConfig};
pub use config_error::{ConfigError, ConfigFault, ConfigField};
#[cfg(feature = "virtio-drivers")]
pub use device::{Device, Progress};
pub use driver::{Driver, Step};
pub use features::Features;
pub use hotplug::{HotplugMemory, OtherInstance};
#[cfg(feature = "virtio-drivers")]
pub use hotplug_device::HotplugDevice;
pub use leftover::Leftover;
pub use memory::{Memory, Obstacle, Run, Transition, Unplug};
pub use reachable::Reachable;
pub use reason::Reason;
pub use remaining::Remaining;
pub use request::{BlockState, Request, RequestKind, Response, ResponseError};
#[cfg(feature = "virtio-drivers")]
pub use set_up::InitError;
pub use status::{Failure, Pending, ResetCause, Statistics, Status};

/// The device type of virtio-mem.
pub const DEVICE_ID: u16 = 24;
