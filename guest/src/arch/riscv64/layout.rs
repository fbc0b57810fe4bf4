//! Chooses the layout of the address space, that of Sv39.

use hotmem_guest::layout::Layout;

/// The layout of the address space.
pub(crate) const LAYOUT: Layout = Layout::THREE_LEVELS;
