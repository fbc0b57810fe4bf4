//! The constants and structs of the C interface to a balloon.

use core::time::Duration;
use hotmem_virtio::balloon::{
    Answer, Driver, Features, InflateBitmap, Message, Poison, Queue, Ranges, RawConfig,
};

/// The size of `struct hotmem_balloon` in bytes.
pub const HOTMEM_BALLOON_SIZE: usize = 8192;
/// The device type of virtio-balloon.
pub const HOTMEM_BALLOON_DEVICE_ID: u16 = 5;
const _: () = assert!(HOTMEM_BALLOON_DEVICE_ID == hotmem_virtio::balloon::DEVICE_ID);
/// The feature bits that the driver supports. `VIRTIO_F_ORDER_PLATFORM` is not one of them, because
/// the kernel's own transport would have to order its accesses as the device sees them.
pub const HOTMEM_BALLOON_FEATURES: u64 = 0x1_0000_00ff;
const _: () = {
    let supported = Features::all().difference(Features::ORDER_PLATFORM);
    assert!(HOTMEM_BALLOON_FEATURES == supported.bits());
};

/// Write `value` to the field `actual` of the configuration space, and then call the step function
/// again.
pub const HOTMEM_STEP_SET_ACTUAL: i32 = 4;
/// The device has not answered for too long. Reset the device, negotiate the same features, call
/// `hotmem_balloon_reset`, and then call the step function again.
pub const HOTMEM_STEP_RESET: i32 = 5;

/// The queue of inflate requests.
pub const HOTMEM_QUEUE_INFLATE: i32 = 0;
/// The queue of deflate requests.
pub const HOTMEM_QUEUE_DEFLATE: i32 = 1;
/// With VIRTIO_BALLOON_F_STATS_VQ: the queue of statistics.
pub const HOTMEM_QUEUE_STATISTICS: i32 = 2;
/// With VIRTIO_BALLOON_F_FREE_PAGE_HINT: the queue of free page hints.
pub const HOTMEM_QUEUE_HINTS: i32 = 3;
/// With VIRTIO_BALLOON_F_PAGE_REPORTING: the queue of free page reports.
pub const HOTMEM_QUEUE_REPORTS: i32 = 4;

/// The balloon has the size that the host requests.
pub const HOTMEM_BALLOON_SETTLED: u32 = 0;
/// The balloon is being inflated or deflated.
pub const HOTMEM_BALLOON_RESIZING: u32 = 1;
/// The balloon cannot reach the requested size now.
pub const HOTMEM_BALLOON_PENDING: u32 = 2;
/// The driver has stopped.
pub const HOTMEM_BALLOON_FAILED: u32 = 3;

/// Report all free pageblocks without a delay, and keep none of them unreported.
pub const HOTMEM_REPORT_EAGERLY: u32 = 1 << 0;
/// The kernel fills freed memory with the pattern `poison`, and requires that free memory keeps it.
pub const HOTMEM_POISON: u32 = 1 << 1;
/// The kernel trusts its host, so the driver asks the device what memory contains
/// (VIRTIO_BALLOON_F_DEVICE_INIT_REPORTED and VIRTIO_BALLOON_F_DEVICE_INIT_ON_INFLATE, which are drafts).
/// Memory that the device has initialised with zeroes is then known to be zero, if marks are kept
/// (`hotmem_keep_zero_marks`). If the device lies, the kernel uses old data as zeroes.
pub const HOTMEM_TRUST_HOST: u32 = 1 << 2;

/// The maximal number of bytes in a buffer that the device reads: 256 frame numbers.
pub const HOTMEM_BALLOON_BYTES: usize = 1024;
/// The maximal number of ranges in a report.
pub const HOTMEM_BALLOON_RANGES: usize = 32;
/// The maximal number of bytes in a bitmap that the device writes: a bit for each of 256 frames.
pub const HOTMEM_BALLOON_BITMAP_BYTES: usize = 32;
const _: () = assert!(HOTMEM_BALLOON_BYTES == Message::MAX_BYTES);
const _: () = assert!(HOTMEM_BALLOON_BITMAP_BYTES == InflateBitmap::MAX_BYTES);
const _: () = assert!(HOTMEM_BALLOON_RANGES == Ranges::MAX_LEN);

/// The driver of a virtio-balloon device. The kernel fills the struct with zeroes at first, never
/// moves or copies it, and never frees it.
#[repr(C, align(16))]
#[allow(missing_debug_implementations, reason = "opaque bytes")]
pub struct hotmem_balloon {
    opaque: [u8; HOTMEM_BALLOON_SIZE],
}

/// The kernel's options for a balloon. Zeroes are the defaults.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct hotmem_balloon_options {
    /// The number of free frames that the balloon leaves to the kernel, even if the host requests a
    /// larger balloon.
    pub min_free_frames: u64,
    /// The time that the device may take to answer. 0 means 10 seconds.
    pub answer_timeout_ns: u64,
    /// A combination of HOTMEM_REPORT_EAGERLY, HOTMEM_POISON and HOTMEM_TRUST_HOST, or 0.
    pub flags: u32,
    /// With HOTMEM_POISON: the 32-bit pattern that fills freed memory.
    pub poison: u32,
    /// The maximal number of ranges in a report. The queue of reports must have a descriptor for
    /// each range. 0 means HOTMEM_BALLOON_RANGES.
    pub max_report_ranges: u32,
    /// Reserved, 0.
    pub reserved: u32,
}

/// The fields of the device's configuration space that the driver reads, in the CPU's byte order.
/// The driver checks all values.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct hotmem_balloon_config {
    /// The field at offset 0: the size of the balloon that the host requests, in frames.
    pub num_pages: u32,
    /// With VIRTIO_BALLOON_F_FREE_PAGE_HINT: the field at offset 8. Otherwise 0.
    pub free_page_hint_cmd_id: u32,
    /// The configuration generation. Read it before the fields.
    pub generation: u32,
}

/// A range of physical addresses.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct hotmem_range {
    /// The physical address of the start.
    pub paddr: u64,
    /// The length in bytes.
    pub len: u64,
}

/// The output of a step.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct hotmem_balloon_message {
    /// After HOTMEM_STEP_WAIT: the time of the next step.
    pub until_ns: u64,
    /// After HOTMEM_STEP_SEND: the queue to use. After HOTMEM_STEP_RESET: the queue on which the
    /// device has not answered.
    pub queue: i32,
    /// After HOTMEM_STEP_SET_ACTUAL: the value to write.
    pub value: u32,
    /// After HOTMEM_STEP_SEND: the length of the buffer that the device reads. Copy this many bytes
    /// of `bytes` to the buffer, and do not change the buffer until the device has used it. If `len`
    /// is 0, the buffers are `ranges`.
    pub len: u32,
    /// After HOTMEM_STEP_SEND: the number of `ranges`. Each is a buffer that the device writes.
    pub count: u32,
    /// After HOTMEM_STEP_SEND: the length of the bitmap of an inflate request, at most
    /// HOTMEM_BALLOON_BITMAP_BYTES. If it is not 0, a buffer of this length that contains zeroes follows
    /// the buffer that the device reads, in the same chain. The device writes to it.
    pub bitmap_len: u32,
    /// Reserved, 0.
    pub reserved: u32,
    /// The bytes of the buffer that the device reads.
    pub bytes: [u8; HOTMEM_BALLOON_BYTES],
    /// The buffers that the device writes.
    pub ranges: [hotmem_range; HOTMEM_BALLOON_RANGES],
}

/// An answer of the device: it has used the outstanding buffers of a queue. The driver checks all
/// values.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct hotmem_balloon_answer {
    /// The queue, one of HOTMEM_QUEUE_*.
    pub queue: i32,
    /// The length that the device has written to the used ring, in bytes. Pass it on as it is.
    pub written: u32,
    /// After an inflate request with a bitmap: the contents of the bitmap. Bytes beyond its length may
    /// have any value.
    pub bitmap: [u8; HOTMEM_BALLOON_BITMAP_BYTES],
}

/// The state of a balloon. The counters wrap around.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct hotmem_balloon_status {
    /// One of HOTMEM_BALLOON_SETTLED to HOTMEM_BALLOON_FAILED.
    pub state: u32,
    /// Reserved, 0.
    pub reserved: u32,
    /// The number of frames in the balloon.
    pub inflated: u64,
    /// The number of frames that the host requests to be in the balloon.
    pub target: u64,
    /// The number of reports that the device has acknowledged.
    pub reports: u64,
    /// The number of frames in these reports.
    pub reported: u64,
    /// The number of frames of reports and of inflate requests that the device says it has initialised.
    pub initialised: u64,
    /// The number of answers by which the device says that it has initialised more than it was given.
    /// They are not believed.
    pub invalid_answers: u64,
}

impl hotmem_balloon_answer {
    /// Returns the answer for the driver, or `None` if the queue does not exist.
    pub(super) fn answer(&self) -> Option<Answer> {
        let hotmem_balloon_answer { queue, written, bitmap } = *self;
        let queue = usize::try_from(queue).ok().and_then(|index| Queue::ALL.get(index))?;
        Some(Answer { queue: *queue, written, bitmap: InflateBitmap::new(bitmap) })
    }
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

    /// Returns the features that the kernel can use.
    pub(super) fn usable(&self) -> Features {
        match self.flags & HOTMEM_TRUST_HOST {
            0 => Features::all() - Features::ABOUT_CONTENTS,
            _ => Features::all(),
        }
    }

    pub(super) fn driver(&self, features: Features, config: &RawConfig) -> Driver {
        let answer_timeout = match self.answer_timeout_ns {
            0 => Driver::DEFAULT_ANSWER_TIMEOUT,
            nanoseconds => Duration::from_nanos(nanoseconds),
        };
        let ranges = match self.max_report_ranges {
            0 => Ranges::MAX_LEN,
            ranges => ranges as usize,
        };
        Driver::new(features, config)
            .with_answer_timeout(answer_timeout)
            .with_max_report_ranges(ranges)
    }
}
