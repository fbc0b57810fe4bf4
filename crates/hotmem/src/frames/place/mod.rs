//! Allocates where the other searches do not look: at an exact place, or a free run that begins at
//! any frame.

mod contiguous;
mod exact;
