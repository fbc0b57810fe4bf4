//! Sets the lengths of the arrays that the kernel uses instead of a heap.

/// The maximal number of processors that can be started.
pub const MAX_CPUS: usize = 64;
/// The maximal number of virtio-mem devices. Device n interrupts by message n.
pub const MAX_DEVICES: usize = 16;
/// The maximal number of memory slots, each of which can have a DIMM.
pub const MAX_DIMMS: usize = 32;
/// The maximal number of memories of devices that commands make RAM.
pub const MAX_DAX: usize = 8;
