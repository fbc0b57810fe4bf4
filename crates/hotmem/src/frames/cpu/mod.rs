//! Holds what the allocator remembers for each CPU and each node: the memory that their next
//! allocations come from.

mod cursors;
mod hints;
mod low_memory;
mod node_hints;
