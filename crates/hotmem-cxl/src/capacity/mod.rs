//! Dynamic capacity: memory that a device offers in extents, and asks back (9.13.3).

mod book;
mod error;
mod set;

pub use book::{DynamicCapacity, RequestKind};
pub use error::CapacityError;
