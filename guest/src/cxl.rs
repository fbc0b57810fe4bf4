//! Reads where CXL memory may be, and chooses which devices share a window.

mod members;
mod table;

pub use members::{Candidate, Members, MemoryKind, choose_members};
pub use table::{CxlTable, TableFault};

use crate::limits::MAX_DAX;

/// The maximal number of bridges, of windows, of devices, and of ranges of memory that the kernel
/// uses.
pub const MAX_CXL: usize = MAX_DAX;
