//! Defines the type that contains all words of a machine.

use super::directory::{Directory, NodeNumbers, Ranges};
use crate::sync::const_unless_loom;

/// All words of a machine, its announced ranges, and the numbers of its nodes.
pub(crate) struct Words {
    pub(super) directory: Directory,
    pub(super) ranges: Ranges,
    pub(super) numbers: NodeNumbers,
}

impl Words {
    const_unless_loom! {
        /// Creates the words of a machine on which nothing is announced.
        pub(crate) fn new() -> Words {
            Words {
                directory: Directory::new(),
                ranges: Ranges::new(),
                numbers: NodeNumbers::new(),
            }
        }
    }
}
