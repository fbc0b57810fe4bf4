//! Flushes TLBs after the maps have changed entries themselves.

use core::sync::atomic::{Ordering::SeqCst, fence};
use hotmem_pgtable::{Flush, Flusher};

/// Makes the changed entries visible by a fence, and then flushes all TLBs, as
/// [`Native`](hotmem_pgtable::Native) does for its own changes.
pub(crate) fn flush_all(flusher: &mut impl Flusher, flush: Flush) {
    fence(SeqCst);
    flusher.flush(flush);
}
