//! The constants and structs of the C interface to a virtio-mem device.

use hotmem_virtio::mem::{Features, RawConfig, Request};

/// The size of `struct hotmem_virtio_mem` in bytes.
pub const HOTMEM_VIRTIO_MEM_SIZE: usize = 1344;
/// The device type of virtio-mem.
pub const HOTMEM_VIRTIO_MEM_DEVICE_ID: u16 = 24;
const _: () = assert!(HOTMEM_VIRTIO_MEM_DEVICE_ID == hotmem_virtio::mem::DEVICE_ID);
/// The feature bits that the driver supports. `VIRTIO_F_ORDER_PLATFORM` is not one of them, because
/// the kernel's own transport would have to order its accesses as the device sees them.
pub const HOTMEM_VIRTIO_MEM_FEATURES: u64 = 0x3_0000_0007;
const _: () = {
    let supported = Features::all().difference(Features::ORDER_PLATFORM);
    assert!(HOTMEM_VIRTIO_MEM_FEATURES == supported.bits());
};

/// There is nothing to do until the device interrupts, or, for a balloon, until `wake_reporter` is
/// called.
pub const HOTMEM_STEP_IDLE: i32 = 0;
/// Put the request on the queue, and then call the step function again, without waiting for the
/// answer.
pub const HOTMEM_STEP_SEND: i32 = 1;
/// There is more to do. Call the step function again when convenient.
pub const HOTMEM_STEP_AGAIN: i32 = 2;
/// There is nothing to do until the time `until_ns`, or until the device interrupts.
pub const HOTMEM_STEP_WAIT: i32 = 3;

/// The driver reads from the device which blocks are plugged.
pub const HOTMEM_VIRTIO_MEM_SYNCHRONISING: u32 = 0;
/// The driver plugs or unplugs memory.
pub const HOTMEM_VIRTIO_MEM_RESIZING: u32 = 1;
/// The requested size is plugged and online.
pub const HOTMEM_VIRTIO_MEM_REACHED: u32 = 2;
/// The requested size cannot be reached now. `hotmem_virtio_mem_explain` returns the reason.
pub const HOTMEM_VIRTIO_MEM_PENDING: u32 = 3;
/// The driver has stopped. `hotmem_virtio_mem_explain` returns the reason. Plugged memory stays usable.
pub const HOTMEM_VIRTIO_MEM_FAILED: u32 = 4;
/// The device is gone (`hotmem_virtio_mem_withdraw`). `plugged` is the size of the memory that
/// remained at the last call. If it is not 0, `hotmem_virtio_mem_explain` returns the reason.
pub const HOTMEM_VIRTIO_MEM_WITHDRAWN: u32 = 5;

/// The driver of a virtio-mem device. The kernel fills the struct with zeroes at first, never moves
/// or copies it, and never frees it.
#[repr(C, align(16))]
#[allow(missing_debug_implementations, reason = "opaque bytes")]
pub struct hotmem_virtio_mem {
    opaque: [u8; HOTMEM_VIRTIO_MEM_SIZE],
}

/// The device's configuration space (VIRTIO 1.3, 5.15.4) in the CPU's byte order. The driver checks
/// all values.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct hotmem_virtio_mem_config {
    /// The size of a block in bytes.
    pub block_size: u64,
    /// With VIRTIO_MEM_F_ACPI_PXM: the NUMA node.
    pub node_id: u16,
    /// Ignored.
    pub padding: [u8; 6],
    /// The physical address of the region.
    pub addr: u64,
    /// The size of the region in bytes.
    pub region_size: u64,
    /// The size, in bytes, of the part of the region in which blocks can be plugged.
    pub usable_region_size: u64,
    /// The number of bytes that are plugged.
    pub plugged_size: u64,
    /// The number of bytes that the device requests to be plugged.
    pub requested_size: u64,
}

/// The output of a step.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct hotmem_virtio_mem_request {
    /// After HOTMEM_STEP_WAIT: the time of the next step.
    pub until_ns: u64,
    /// After HOTMEM_STEP_SEND: the bytes of the buffer that the device reads. The device writes its
    /// answer of 10 bytes to a second buffer.
    pub bytes: [u8; 24],
}
const _: () = assert!(Request::SIZE == 24);

/// The state of a virtio-mem device.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct hotmem_virtio_mem_status {
    /// One of HOTMEM_VIRTIO_MEM_SYNCHRONISING to HOTMEM_VIRTIO_MEM_WITHDRAWN.
    pub state: u32,
    /// Reserved, 0.
    pub reserved: u32,
    /// The number of bytes that the device requests to be plugged.
    pub requested: u64,
    /// The number of bytes that are plugged.
    pub plugged: u64,
    /// The number of requests that were sent.
    pub requests: u64,
    /// The number of frames of kernel memory for want of which memory could not be plugged since the
    /// last call of `hotmem_virtio_mem_get_status`, or 0. The driver tries again later. A kernel with
    /// a balloon requests them from it (`hotmem_balloon_need`).
    pub missing_frames: u64,
}

impl hotmem_virtio_mem_config {
    pub(super) fn raw(&self) -> RawConfig {
        RawConfig {
            block_size: self.block_size,
            node_id: self.node_id,
            addr: self.addr,
            region_size: self.region_size,
            usable_region_size: self.usable_region_size,
            plugged_size: self.plugged_size,
            requested_size: self.requested_size,
        }
    }
}
