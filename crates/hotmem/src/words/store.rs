//! Defines the type that contains all words of an instance.

use super::directory::{Directory, NodeNumbers, Ranges};
use crate::sync::const_unless_loom;

/// All words of an instance, its announced ranges, and the numbers of its nodes.
pub(crate) struct SectionWords {
    pub(super) directory: Directory,
    pub(super) ranges: Ranges,
    pub(super) numbers: NodeNumbers,
}

impl SectionWords {
    const_unless_loom! {
        /// Creates the words of an instance on which nothing is announced.
        pub(crate) fn new() -> SectionWords {
            SectionWords {
                directory: Directory::new(),
                ranges: Ranges::new(),
                numbers: NodeNumbers::new(),
            }
        }
    }
}
