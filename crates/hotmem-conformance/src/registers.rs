//! Names the registers of a virtio-mmio device (4.2.2) and the bits of its status (2.1).

pub(crate) const MAGIC_VALUE: u64 = 0x00;
pub(crate) const VERSION: u64 = 0x04;
pub(crate) const DEVICE_ID: u64 = 0x08;
pub(crate) const DEVICE_FEATURES: u64 = 0x10;
pub(crate) const DEVICE_FEATURES_SEL: u64 = 0x14;
pub(crate) const DRIVER_FEATURES: u64 = 0x20;
pub(crate) const DRIVER_FEATURES_SEL: u64 = 0x24;
pub(crate) const QUEUE_SEL: u64 = 0x30;
pub(crate) const QUEUE_NUM_MAX: u64 = 0x34;
pub(crate) const QUEUE_NUM: u64 = 0x38;
pub(crate) const QUEUE_READY: u64 = 0x44;
pub(crate) const QUEUE_NOTIFY: u64 = 0x50;
pub(crate) const INTERRUPT_STATUS: u64 = 0x60;
pub(crate) const INTERRUPT_ACK: u64 = 0x64;
pub(crate) const STATUS: u64 = 0x70;
pub(crate) const QUEUE_DESC: u64 = 0x80;
pub(crate) const QUEUE_DRIVER: u64 = 0x90;
pub(crate) const QUEUE_DEVICE: u64 = 0xa0;
pub(crate) const CONFIG_GENERATION: u64 = 0xfc;
pub(crate) const CONFIG: u64 = 0x100;

/// The value of the register `MagicValue`.
pub(crate) const MAGIC: u32 = 0x7472_6976;
/// The value of the register `Version` of a device without the legacy interface.
pub(crate) const MODERN: u32 = 2;

pub(crate) const ACKNOWLEDGE: u32 = 1;
pub(crate) const DRIVER: u32 = 2;
pub(crate) const DRIVER_OK: u32 = 4;
pub(crate) const FEATURES_OK: u32 = 8;
pub(crate) const NEEDS_RESET: u32 = 64;
pub(crate) const FAILED: u32 = 128;

/// The bits of the register `InterruptStatus`: a buffer was used, the configuration has changed.
pub(crate) const USED_BUFFER: u32 = 1;
pub(crate) const CONFIG_CHANGE: u32 = 2;

/// The feature `VIRTIO_F_VERSION_1` (6).
pub(crate) const VERSION_1: u64 = 1 << 32;
