//! virtio-mem (device 24): memory that the host plugs and unplugs in blocks.
//!
//! The device offers a region of addresses, cut into blocks, and a size that it would like to see
//! plugged. The driver plugs blocks from the bottom up and unplugs them from the top down until
//! that size is reached, one request at a time, each as large as the protocol allows. Section
//! numbers in this module's comments are those of the virtio 1.3 specification.

#[forbid(unsafe_code)]
mod config;
#[cfg(feature = "virtio-drivers")]
mod device;
#[forbid(unsafe_code)]
mod driver;
#[forbid(unsafe_code)]
mod features;
#[forbid(unsafe_code)]
mod hotplug;
#[forbid(unsafe_code)]
mod memory;
#[forbid(unsafe_code)]
mod request;
#[forbid(unsafe_code)]
mod resize;
#[forbid(unsafe_code)]
mod settle;
#[forbid(unsafe_code)]
mod status;
#[forbid(unsafe_code)]
mod sync;

pub use config::{Config, ConfigError, ConfigFault, ConfigField, RawConfig};
#[cfg(feature = "virtio-drivers")]
pub use device::{Device, InitError, Progress};
pub use driver::{Driver, Step};
pub use features::Features;
pub use hotplug::HotplugMemory;
pub use memory::{Memory, Obstacle, Run, Unplug};
pub use request::{BlockState, Request, RequestKind, Response, ResponseError};
pub use status::{Failure, Pending, Statistics, Status};

/// The device type of virtio-mem.
pub const DEVICE_ID: u16 = 24;
