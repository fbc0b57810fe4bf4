//! The constants and structs of the C interface to a balloon.

use core::time::Duration;
use hotmem_virtio::balloon::{Driver, Features, Message, Poison, Ranges, RawConfig};

/// The size of `struct hotmem_balloon` in bytes.
pub const HOTMEM_BALLOON_SIZE: usize = 8192;
/// The device type of virtio-balloon.
pub const HOTMEM_BALLOON_DEVICE_ID: u16 = 5;
const _: () = assert!(HOTMEM_BALLOON_DEVICE_ID == hotmem_virtio::balloon::DEVICE_ID);
/// The feature bits that the driver supports.
pub const HOTMEM_BALLOON_FEATURES: u64 = 0x1_0000_003f;
const _: () = assert!(HOTMEM_BALLOON_FEATURES == Features::all().bits());

/// Write `value` to the configuration's `actual`, then step again.
pub const HOTMEM_STEP_SET_ACTUAL: i32 = 4;
/// The device has not answered for too long: reset it, negotiate the same features, call
/// `hotmem_balloon_reset`, and go on.
pub const HOTMEM_STEP_RESET: i32 = 5;

/// No queue.
pub const HOTMEM_QUEUE_NONE: i32 = -1;
/// Inflate requests.
pub const HOTMEM_QUEUE_INFLATE: i32 = 0;
/// Deflate requests.
pub const HOTMEM_QUEUE_DEFLATE: i32 = 1;
/// Statistics, with VIRTIO_BALLOON_F_STATS_VQ.
pub const HOTMEM_QUEUE_STATISTICS: i32 = 2;
/// Free page hints, with VIRTIO_BALLOON_F_FREE_PAGE_HINT.
pub const HOTMEM_QUEUE_HINTS: i32 = 3;
/// Free page reports, with VIRTIO_BALLOON_F_PAGE_REPORTING.
pub const HOTMEM_QUEUE_REPORTS: i32 = 4;

/// The balloon has the size that the host requests.
pub const HOTMEM_BALLOON_SETTLED: u32 = 0;
/// The balloon is being inflated or deflated.
pub const HOTMEM_BALLOON_RESIZING: u32 = 1;
/// The size cannot be reached now.
pub const HOTMEM_BALLOON_PENDING: u32 = 2;
/// The driver has stopped.
pub const HOTMEM_BALLOON_FAILED: u32 = 3;

/// Report as much as possible at once, and keep nothing back.
pub const HOTMEM_REPORT_EAGERLY: u32 = 1;
/// The kernel fills freed memory with `poison`, and relies on it.
pub const HOTMEM_POISON: u32 = 2;

/// The largest number of bytes that the device reads: 256 frame numbers.
pub const HOTMEM_BALLOON_BYTES: usize = 1024;
/// The largest number of ranges in a report.
pub const HOTMEM_BALLOON_RANGES: usize = 32;
const _: () = assert!(HOTMEM_BALLOON_BYTES == Message::MOST_BYTES);
const _: () = assert!(HOTMEM_BALLOON_RANGES == Ranges::MOST);

/// The driver of a virtio-balloon device. It begins as zeroes, is neither moved nor copied, and
/// lives as long as the machine.
#[repr(C, align(16))]
#[allow(missing_debug_implementations, reason = "opaque bytes")]
pub struct hotmem_balloon {
    opaque: [u8; HOTMEM_BALLOON_SIZE],
}

/// What the kernel chooses. Zeroes are the defaults.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct hotmem_balloon_options {
    /// Frames that stay with the kernel, however much the host requests.
    pub floor: u64,
    /// The time that the device may take to answer. 0 stands for 10 seconds.
    pub patience_ns: u64,
    /// HOTMEM_REPORT_EAGERLY, HOTMEM_POISON.
    pub flags: u32,
    /// With HOTMEM_POISON: the 32-bit pattern that fills freed memory.
    pub poison: u32,
    /// The maximum number of ranges in a report. The queue of reports must have a descriptor for
    /// each. 0 stands for HOTMEM_BALLOON_RANGES.
    pub report_ranges: u32,
    /// Reserved, 0.
    pub reserved: u32,
}

/// The device's configuration space, as far as the driver reads it, in the CPU's byte order. It is
/// not trusted.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct hotmem_balloon_config {
    /// Offset 0: the size of the balloon that the host requests, in frames.
    pub num_pages: u32,
    /// Offset 8, with VIRTIO_BALLOON_F_FREE_PAGE_HINT; 0 otherwise.
    pub free_page_hint_cmd_id: u32,
    /// The configuration generation, read before the others.
    pub generation: u32,
}

/// A range in bytes.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct hotmem_range {
    /// The physical address.
    pub paddr: u64,
    /// The length in bytes.
    pub len: u64,
}

/// What the kernel must do after a step.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct hotmem_balloon_message {
    /// After HOTMEM_STEP_WAIT: the time of the next step.
    pub until_ns: u64,
    /// After HOTMEM_STEP_SEND: the queue; after HOTMEM_STEP_RESET: the queue on which the device
    /// has not answered.
    pub queue: i32,
    /// After HOTMEM_STEP_SET_ACTUAL: the value.
    pub value: u32,
    /// After HOTMEM_STEP_SEND: the length of the buffer that the device reads. Copy `bytes` into
    /// the buffer, and do not change it until the device has used it. If `len` is 0, the buffers
    /// are `ranges`.
    pub len: u32,
    /// After HOTMEM_STEP_SEND: the number of ranges, each a buffer for the device to write.
    pub count: u32,
    /// The bytes of the buffer to read.
    pub bytes: [u8; HOTMEM_BALLOON_BYTES],
    /// The buffers to write.
    pub ranges: [hotmem_range; HOTMEM_BALLOON_RANGES],
}

/// The state of a balloon. Counters wrap.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct hotmem_balloon_status {
    /// One of HOTMEM_BALLOON_SETTLED and so on.
    pub state: u32,
    /// Reserved, 0.
    pub reserved: u32,
    /// Frames in the balloon.
    pub held: u64,
    /// Frames that the host wants in it.
    pub target: u64,
    /// Reports that the device took.
    pub reports: u64,
    /// Frames in these reports.
    pub reported: u64,
}

impl hotmem_balloon_config {
    pub(super) fn raw(&self) -> RawConfig {
        let hotmem_balloon_config { num_pages, free_page_hint_cmd_id, generation } = *self;
        RawConfig { num_pages, free_page_hint_cmd_id, generation }
    }
}

impl hotmem_balloon_options {
    pub(super) fn poison(&self) -> Poison {
        if self.flags & HOTMEM_POISON != 0 { Poison::Filled(self.poison) } else { Poison::None }
    }

    pub(super) fn driver(&self, features: Features, config: &RawConfig) -> Driver {
        let patience = match self.patience_ns {
            0 => Driver::PATIENCE,
            nanoseconds => Duration::from_nanos(nanoseconds),
        };
        let ranges = match self.report_ranges {
            0 => Ranges::MOST,
            ranges => ranges as usize,
        };
        Driver::new(features, config).with_patience(patience).with_report_ranges(ranges)
    }
}
