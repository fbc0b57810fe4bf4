//! Limits of the tables that the kernel has instead of a heap.

/// The maximal number of processors that can be started.
pub(crate) const MAX_CPUS: usize = 64;
/// The maximal number of virtio-mem devices. Each interrupts by the message of its number.
pub(crate) const MAX_DEVICES: usize = 16;
