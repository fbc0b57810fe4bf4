//! Chooses the layout of the address space: that of Sv39, which every hart has, or with the feature `sv48`,
//! that of Sv48, whose direct map is larger.

use hotmem_guest::layout::Layout;

/// The layout of the address space.
pub(crate) const LAYOUT: Layout =
    if cfg!(feature = "sv48") { Layout::FOUR_LEVELS } else { Layout::THREE_LEVELS };
