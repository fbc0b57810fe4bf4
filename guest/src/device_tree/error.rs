//! Defines the errors of device trees.

use crate::fixed_list::ListFull;
use core::fmt;

/// The reason why a tree is refused.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum TreeError<'t> {
    /// The bytes are not a device tree.
    Format(deforest::Error),
    /// Nodes are nested too deeply.
    TooDeep,
    /// A property is malformed.
    Malformed {
        /// The name of the property's node.
        node: &'t str,
        /// The name of the property.
        property: &'static str,
    },
    /// There is more of something than the kernel has room for.
    TooMany {
        /// The name of what there is too much of.
        what: &'static str,
        /// The room for it.
        max: usize,
    },
    /// The tree lists no RAM.
    NoRam,
    /// The window of PCI is at other addresses for the CPU than for devices.
    TranslatedWindow,
}

impl TreeError<'_> {
    pub(super) fn too_many(what: &'static str, ListFull(max): ListFull) -> Self {
        TreeError::TooMany { what, max }
    }
}

impl<E: Into<deforest::Error>> From<E> for TreeError<'_> {
    fn from(error: E) -> Self {
        TreeError::Format(error.into())
    }
}

impl fmt::Display for TreeError<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            TreeError::Format(error) => error.fmt(f),
            TreeError::TooDeep => f.write_str("nodes are nested too deeply"),
            TreeError::Malformed { node, property } => {
                write!(f, "`{property}` of the node `{}` is malformed", node.escape_debug())
            }
            TreeError::TooMany { what, max } => write!(f, "more than {max} {what}"),
            TreeError::NoRam => f.write_str("no RAM is listed"),
            TreeError::TranslatedWindow => {
                f.write_str("devices see PCI's window at other addresses than the CPU")
            }
        }
    }
}
