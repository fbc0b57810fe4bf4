//! Hotmem's C interface: the functions of `hotmem.h`, with C types and error codes.
//!
//! `cargo xtask header` generates `include/hotmem.h` from this crate, and `staticlib/` builds
//! `libhotmem.a` from it. An instance and the driver of a device are objects in the caller's memory.
//! The engine's tokens stay inside these objects: one function, or one step of a driver, prepares
//! and commits a change.
//!
//! The functions return an error code for misuse that Rust's types prevent: a null pointer, a struct
//! that was not initialised, a second boot, a range that wraps, or a call from a hook. `# Safety`
//! lists the conditions that only the caller can ensure.
#![cfg_attr(target_os = "none", no_std)]
#![allow(non_camel_case_types, reason = "types have the names of the C interface")]

mod balloon;
mod control;
mod diagnose;
mod error;
mod explain;
mod frames;
mod hooks;
mod instance;
#[cfg(target_os = "none")]
mod panic;
mod platform;
mod poison;
mod request;
mod slot;
mod virtio_mem;
mod zeroed;

pub use balloon::{
    HOTMEM_BALLOON_BITMAP_BYTES, HOTMEM_BALLOON_BYTES, HOTMEM_BALLOON_DEVICE_ID,
    HOTMEM_BALLOON_FAILED, HOTMEM_BALLOON_FEATURES, HOTMEM_BALLOON_PENDING, HOTMEM_BALLOON_RANGES,
    HOTMEM_BALLOON_RESIZING, HOTMEM_BALLOON_SETTLED, HOTMEM_BALLOON_SIZE, HOTMEM_POISON,
    HOTMEM_QUEUE_DEFLATE, HOTMEM_QUEUE_HINTS, HOTMEM_QUEUE_INFLATE, HOTMEM_QUEUE_REPORTS,
    HOTMEM_QUEUE_STATISTICS, HOTMEM_REPORT_EAGERLY, HOTMEM_STEP_RESET, HOTMEM_STEP_SET_ACTUAL,
    HOTMEM_TRUST_HOST, hotmem_balloon, hotmem_balloon_accept, hotmem_balloon_answer,
    hotmem_balloon_config, hotmem_balloon_get_status, hotmem_balloon_init, hotmem_balloon_message,
    hotmem_balloon_migrate, hotmem_balloon_need, hotmem_balloon_options, hotmem_balloon_reset,
    hotmem_balloon_status, hotmem_balloon_step, hotmem_range,
};
pub use control::{
    HOTMEM_ONLINE_DEFAULT, HOTMEM_ONLINE_KERNEL, HOTMEM_ONLINE_MOVABLE, HOTMEM_ONLINE_NOT,
    HOTMEM_STATE_ABSENT, HOTMEM_STATE_DEVICE, HOTMEM_STATE_MOVABLE, HOTMEM_STATE_OFFLINE,
    HOTMEM_STATE_ONLINE, HOTMEM_STATE_REMOVING, HOTMEM_STATE_UNKNOWN, HOTMEM_WHY_BOOT_MEMORY,
    HOTMEM_WHY_BUSY, HOTMEM_WHY_METADATA, HOTMEM_WHY_NOT_ENOUGH_FREE, HOTMEM_WHY_NOT_ONLINE,
    HOTMEM_WHY_POISONED, HOTMEM_WHY_REPORTING, HOTMEM_WHY_RETRY, HOTMEM_WHY_UNMOVABLE,
    HOTMEM_WHY_VETO, hotmem_add, hotmem_announce, hotmem_online, hotmem_removal, hotmem_remove,
    hotmem_state, hotmem_withdraw,
};
pub use diagnose::{HOTMEM_VERSION, hotmem_strerror, hotmem_version, hotmem_violated_invariants};
pub use error::{
    HOTMEM_EACCES, HOTMEM_EAGAIN, HOTMEM_EALREADY, HOTMEM_EBUSY, HOTMEM_EEXIST, HOTMEM_EFAULT,
    HOTMEM_EINVAL, HOTMEM_EIO, HOTMEM_ENOENT, HOTMEM_ENOMEM, HOTMEM_ENOSPC, HOTMEM_ENXIO,
    HOTMEM_ERANGE, HOTMEM_EXDEV,
};
pub use frames::{
    hotmem_alloc, hotmem_alloc_frame, hotmem_alloc_frame_unchecked, hotmem_counts, hotmem_free,
    hotmem_free_frame, hotmem_free_frame_unchecked, hotmem_get_counts,
};
pub use hooks::{
    HOTMEM_MIGRATE_FREED, HOTMEM_MIGRATE_MOVED, HOTMEM_MIGRATE_RETRY, HOTMEM_MIGRATE_UNMOVABLE,
    HOTMEM_NONE, hotmem_free_table, hotmem_hooks, hotmem_released, hotmem_tables,
    hotmem_take_table,
};
pub use instance::{
    HOTMEM_ALIGN, HOTMEM_BOOT_RANGES, HOTMEM_RAM, HOTMEM_RESERVED, HOTMEM_SIZE, hotmem,
    hotmem_boot, hotmem_boot_add, hotmem_config, hotmem_configure,
};
pub use poison::{
    HOTMEM_POISONED_IN_USE, HOTMEM_POISONED_QUARANTINED, hotmem_next_poisoned, hotmem_poison,
};
pub use request::{
    HOTMEM_AT, HOTMEM_AVOIDING, HOTMEM_MOVABLE, HOTMEM_NEAR, HOTMEM_ONLY, hotmem_request,
};
pub use virtio_mem::{
    HOTMEM_STEP_AGAIN, HOTMEM_STEP_IDLE, HOTMEM_STEP_SEND, HOTMEM_STEP_WAIT,
    HOTMEM_VIRTIO_MEM_DEVICE_ID, HOTMEM_VIRTIO_MEM_FAILED, HOTMEM_VIRTIO_MEM_FEATURES,
    HOTMEM_VIRTIO_MEM_PENDING, HOTMEM_VIRTIO_MEM_REACHED, HOTMEM_VIRTIO_MEM_RESIZING,
    HOTMEM_VIRTIO_MEM_SIZE, HOTMEM_VIRTIO_MEM_SYNCHRONISING, HOTMEM_VIRTIO_MEM_WITHDRAWN,
    hotmem_virtio_mem, hotmem_virtio_mem_config, hotmem_virtio_mem_explain,
    hotmem_virtio_mem_get_status, hotmem_virtio_mem_init, hotmem_virtio_mem_request,
    hotmem_virtio_mem_reset, hotmem_virtio_mem_status, hotmem_virtio_mem_step,
    hotmem_virtio_mem_withdraw,
};
pub use zeroed::{
    hotmem_add_zeroed, hotmem_alloc_unzeroed, hotmem_alloc_with_contents, hotmem_alloc_zeroed,
    hotmem_free_zeroed, hotmem_keep_zero_marks,
};
