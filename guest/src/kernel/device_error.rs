//! The errors of devices.

use core::fmt;
use hotmem::AllocError;
use hotmem::report::ReporterError;
use hotmem_virtio::balloon;
use hotmem_virtio::mem::InitError;

/// The reason why a device cannot be used.
pub(crate) enum DeviceError {
    /// There is no memory for its queue.
    Queue(AllocError),
    /// A virtio-mem device cannot be started.
    Init(InitError),
    /// An entropy source violates the specification.
    Entropy(&'static str),
    /// A balloon cannot be started.
    Balloon(balloon::InitError),
    /// The engine refuses to report free pages to the balloon.
    Reporter(ReporterError),
}

impl fmt::Display for DeviceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DeviceError::Queue(error) => error.fmt(f),
            DeviceError::Init(error) => error.fmt(f),
            DeviceError::Entropy(reason) => f.write_str(reason),
            DeviceError::Balloon(error) => error.fmt(f),
            DeviceError::Reporter(error) => error.fmt(f),
        }
    }
}
