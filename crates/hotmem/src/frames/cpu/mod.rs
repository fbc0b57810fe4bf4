//! Holds what the allocator remembers for each CPU and each node: the memory that their next
//! allocations come from.

mod cursors;
mod hints;
mod low_memory;
mod node_hints;
mod record;
mod records;

pub(super) use record::Cpu;
pub(super) use records::Cpus;
#[cfg(not(loom))]
pub(crate) use records::cpu_frames;
