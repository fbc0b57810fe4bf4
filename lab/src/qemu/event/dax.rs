//! The state of CXL memory.

use serde::Deserialize;

/// The state of CXL memory. Sizes are in bytes.
#[derive(Clone, PartialEq, Eq, Debug, Deserialize)]
#[allow(missing_docs)]
pub struct Dax {
    /// The number of the memory.
    pub memory: usize,
    pub size: u64,
    pub node: u32,
    /// The size of the compounds of device memory.
    pub align: u64,
    /// `devdax` or `system-ram`.
    pub mode: String,
    pub online: u64,
    pub movable: bool,
}
