//! Describes a type of device to the points that are the same for any type.

use crate::driver::Driver;
use crate::failure::Stop;

/// What the points of any device need to know about one type.
#[derive(Debug)]
pub(crate) struct DeviceType {
    /// The device ID.
    pub(crate) id: u32,
    /// The features of the type that the suite accepts.
    pub(crate) features: u64,
    /// Lets the host change the configuration.
    pub(crate) change_by_host: fn(&mut Driver<'_>) -> Result<(), Stop>,
    /// Reads the field of the configuration that `change_by_host` changes.
    pub(crate) read_host_field: fn(&mut Driver<'_>) -> u64,
    /// Sends a request to a device that was started with any features.
    pub(crate) send_request: fn(&mut Driver<'_>) -> Result<(), Stop>,
}
