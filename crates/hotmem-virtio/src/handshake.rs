//! From a device's reset to the features that both sides agree on (3.1.1).

use bitflags::Flags;
use core::fmt;
use core::ops::BitAnd;
use virtio_drivers::transport::{DeviceStatus, DeviceType, Transport};

/// The reason why no features were agreed on with a device. `F`: those of its type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HandshakeError<F> {
    /// It is of this type, not of the driver's.
    DeviceType(DeviceType),
    /// It does not end its reset.
    Reset,
    /// It does not offer `VERSION_1`, or its transport is of before that.
    Legacy,
    /// It does not accept these features, all of which it offers.
    Features(F),
}

/// What was agreed on.
pub(crate) struct Agreed<F> {
    pub(crate) offered: F,
    pub(crate) features: F,
}

/// The feature bit of every device that follows version 1 of the specification or later (6).
const VERSION_1: u64 = 1 << 32;
/// Reads of a device's status after which its reset does not end.
const RESET_READS: u32 = 1_000_000;

/// Resets the device and agrees with it on what `accept` says of what it offers.
pub(crate) fn shake_hands<T: Transport, F>(
    transport: &mut T,
    kind: DeviceType,
    accept: impl FnOnce(F) -> F,
) -> Result<Agreed<F>, HandshakeError<F>>
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
    let offered = F::from_bits_truncate(transport.read_device_features());
    let features = transport.begin_init(accept(offered));
    if !features.contains(F::from_bits_retain(VERSION_1)) {
        return Err(HandshakeError::Legacy);
    }
    if !transport.get_status().contains(DeviceStatus::FEATURES_OK) {
        return Err(HandshakeError::Features(features));
    }
    Ok(Agreed { offered, features })
}

/// Resets the device; says whether it has ended its reset, and touches nothing any more.
pub(crate) fn reset<T: Transport>(transport: &mut T) -> bool {
    // 4.1.4.3.2: the reset has happened when the status reads zero.
    transport.set_status(DeviceStatus::empty());
    (0..RESET_READS).any(|_| transport.get_status().is_empty())
}

impl<F: fmt::Debug> fmt::Display for HandshakeError<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            HandshakeError::DeviceType(kind) => write!(f, "it is of another type, {kind:?}"),
            HandshakeError::Reset => write!(f, "the device does not end its reset"),
            HandshakeError::Legacy => write!(f, "the device does not offer VERSION_1"),
            HandshakeError::Features(features) => write!(f, "the device refuses {features:?}"),
        }
    }
}

impl<F: fmt::Debug> core::error::Error for HandshakeError<F> {}
