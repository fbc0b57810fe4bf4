//! What the words of a machine consist of.

use super::directory::{Directory, Numbers, Ranges};
use crate::sync::const_unless_loom;

/// All words of a machine, and the announced ranges.
pub(crate) struct Words {
    pub(super) directory: Directory,
    pub(super) ranges: Ranges,
    pub(super) numbers: Numbers,
}

impl Words {
    const_unless_loom! {
        /// Nothing is announced.
        pub(crate) fn new() -> Words {
            Words {
                directory: Directory::new(),
                ranges: Ranges::new(),
                numbers: Numbers::new(),
            }
        }
    }
}
