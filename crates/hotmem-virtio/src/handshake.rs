//! Resets a device, negotiates its features and sets it running, in the order and by the steps of
//! the specification (3.1.1).
//!
//! Each write adds one bit to the device status, because some devices ignore a write that adds two.
//! The features are read after DRIVER is set, because some devices forget which half of the features
//! was selected while the status is 0.
//!
//! The features of queues are negotiated here, because the drivers do not depend on them.

use crate::barrier::{order_reads, order_writes};
use crate::queue::QueueFeatures;
use bitflags::Flags;
use core::fmt;
use core::ops::BitAnd;
use virtio_drivers::transport::{DeviceStatus, DeviceType, Transport};

/// The reason why the negotiation failed. `F` is the type of the device's feature bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum HandshakeError<F> {
    /// The device is of this type, but the driver is for another.
    DeviceType(DeviceType),
    /// The reset of the device does not complete.
    Reset,
    /// The device does not offer `VERSION_1`, or its transport uses the legacy interface.
    Legacy,
    /// The device offers these features, but refuses them.
    Features(F),
    /// The device refuses a driver that does not accept `ACCESS_PLATFORM`: it uses the addresses of
    /// an IOMMU, which the driver does not know.
    AccessPlatform,
}

/// The result of a negotiation.
pub(crate) struct NegotiatedFeatures<F> {
    pub(crate) offered_features: F,
    pub(crate) features: F,
    pub(crate) queue_features: QueueFeatures,
}

/// The feature bit of every device that follows version 1 of the specification or later (6).
const VERSION_1: u64 = 1 << 32;
/// The feature bit of a device whose accesses to memory an IOMMU may translate (6).
const ACCESS_PLATFORM: u64 = 1 << 33;
/// The number of reads of a device's status after which its reset counts as failed.
const MAX_RESET_READS: u32 = 1_000_000;

/// Resets the device and negotiates the features that `accept` chooses from those offered, and those of
/// queues.
pub(crate) fn shake_hands<T: Transport, F>(
    transport: &mut T,
    kind: DeviceType,
    accept: impl FnOnce(F) -> F,
) -> Result<NegotiatedFeatures<F>, HandshakeError<F>>
where
    F: Flags<Bits = u64> + BitAnd<Output = F> + fmt::Debug + Copy,
{
    if transport.device_type() != kind {
        return Err(HandshakeError::DeviceType(transport.device_type()));
    }
    if transport.requires_legacy_layout() {
        return Err(HandshakeError::Legacy);
    }
    if !reset(transport) {
        return Err(HandshakeError::Reset);
    }
    add_status(transport, DeviceStatus::ACKNOWLEDGE);
    add_status(transport, DeviceStatus::DRIVER);
    let offered_bits = transport.read_device_features();
    let offered_features = F::from_bits_truncate(offered_bits);
    let features = offered_features & accept(offered_features);
    if !features.contains(F::from_bits_retain(VERSION_1)) {
        return Err(HandshakeError::Legacy);
    }
    let of_queues = offered_bits & QueueFeatures::BITS;
    transport.write_driver_features(features.bits() | of_queues);
    add_status(transport, DeviceStatus::FEATURES_OK);
    if !transport.get_status().contains(DeviceStatus::FEATURES_OK) {
        let not_accepted = offered_bits & !features.bits();
        return Err(match not_accepted & ACCESS_PLATFORM {
            0 => HandshakeError::Features(features),
            _ => HandshakeError::AccessPlatform,
        });
    }
    let queue_features = QueueFeatures::of_device(of_queues);
    Ok(NegotiatedFeatures { offered_features, features, queue_features })
}

/// Sets the device running, whose features are negotiated and whose queues are set up.
///
/// # Errors
/// The device does not run. This is its status.
pub(crate) fn set_running<T: Transport>(transport: &mut T) -> Result<(), DeviceStatus> {
    // From this write to a register on, the device reads what was written to the queues.
    order_writes();
    add_status(transport, DeviceStatus::DRIVER_OK);
    let status = transport.get_status();
    if stop_of(status).is_none() { Ok(()) } else { Err(status) }
}

/// Tells the device that the driver has given up (2.1).
pub(crate) fn set_failed<T: Transport>(transport: &mut T) {
    add_status(transport, DeviceStatus::FAILED);
}

/// Sets a bit of the device status, and keeps those that are set, because a driver must not clear
/// a bit (2.1.1).
fn add_status<T: Transport>(transport: &mut T, bit: DeviceStatus) {
    let status = transport.get_status();
    transport.set_status(status | bit);
}

/// Resets the device. Returns whether the reset has completed. If so, the device accesses no memory
/// any more.
pub(crate) fn reset<T: Transport>(transport: &mut T) -> bool {
    // 4.1.4.3.2: the reset has completed when the status reads zero.
    transport.set_status(DeviceStatus::empty());
    let has_completed = (0..MAX_RESET_READS).any(|_| transport.get_status().is_empty());
    // Orders the read of the register before accesses to memory that the device has released.
    order_reads();
    has_completed
}

/// Why a device that was started does not run any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stop {
    /// The device has met an error that only a reset ends (`DEVICE_NEEDS_RESET`, 2.1).
    NeedsReset,
    /// The device has reset itself.
    ResetItself,
    /// The driver has given up, or the device is gone: then its registers read as ones.
    Failed,
}

/// Returns why a device with this status does not run, or `None` if it runs.
pub(crate) fn stop_of(status: DeviceStatus) -> Option<Stop> {
    match status {
        status if status.contains(DeviceStatus::FAILED) => Some(Stop::Failed),
        status if status.contains(DeviceStatus::DEVICE_NEEDS_RESET) => Some(Stop::NeedsReset),
        status if !status.contains(DeviceStatus::DRIVER_OK) => Some(Stop::ResetItself),
        _ => None,
    }
}

impl<F: fmt::Debug> fmt::Display for HandshakeError<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            HandshakeError::DeviceType(kind) => {
                write!(f, "the driver is not for a device of type {kind:?}")
            }
            HandshakeError::Reset => write!(f, "the reset of the device does not complete"),
            HandshakeError::Legacy => write!(f, "the device does not offer VERSION_1"),
            HandshakeError::Features(features) => write!(f, "the device refuses {features:?}"),
            HandshakeError::AccessPlatform => {
                f.write_str("the device requires ACCESS_PLATFORM: it uses addresses of an IOMMU")
            }
        }
    }
}

impl<F: fmt::Debug> core::error::Error for HandshakeError<F> {}
