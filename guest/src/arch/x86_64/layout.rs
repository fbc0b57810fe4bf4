//! Chooses the layout of the address space.

use hotmem_guest::layout::Layout;

/// The layout of the address space.
pub(crate) const LAYOUT: Layout = Layout::FOUR_LEVELS;
