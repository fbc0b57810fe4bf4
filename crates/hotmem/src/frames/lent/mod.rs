//! Records memory that is lent to the host, and memory that the host must not take.

#[cfg(not(loom))]
mod frame_set;
#[cfg(not(loom))]
mod memory;
mod pin_table;
mod pins;

#[cfg(not(loom))]
pub use memory::LentMemory;
pub use pin_table::MAX_PINS;
pub(super) use pin_table::Pins;
