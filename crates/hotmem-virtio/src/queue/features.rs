//! Names the features that change the format of a queue.

/// The features of a queue that the driver and the device have negotiated (VIRTIO 1.3, 6).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QueueFeatures {
    /// `INDIRECT_DESC`: a chain may be a table of descriptors elsewhere.
    pub indirect: bool,
    /// `EVENT_IDX`: each side says by an index of which chain it wants to be notified, instead of by a
    /// flag.
    pub event_index: bool,
}

impl QueueFeatures {
    /// The feature bits `INDIRECT_DESC` and `EVENT_IDX`.
    pub const BITS: u64 = Self::INDIRECT_DESC | Self::EVENT_IDX;
    const INDIRECT_DESC: u64 = 1 << 28;
    const EVENT_IDX: u64 = 1 << 29;

    /// Returns the features of a queue of a device with these negotiated feature bits.
    #[must_use]
    pub const fn of_device(features: u64) -> QueueFeatures {
        QueueFeatures {
            indirect: features & Self::INDIRECT_DESC != 0,
            event_index: features & Self::EVENT_IDX != 0,
        }
    }
}
