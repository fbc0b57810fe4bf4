//! What the words of a machine consist of.

use super::directory::{Directory, Ranges};
use crate::sync::{const_unless_loom, settled};

/// All words of a machine, and the announced ranges.
pub(crate) struct Words {
    pub(super) directory: Directory,
    pub(super) ranges: Ranges,
    /// A bit for each node on which a range was ever announced.
    pub(super) nodes: settled::AtomicU64,
}

impl Words {
    const_unless_loom! {
        /// Nothing is announced.
        pub(crate) fn new() -> Words {
            Words {
                directory: Directory::new(),
                ranges: Ranges::new(),
                nodes: settled::AtomicU64::new(0),
            }
        }
    }
}
