//! Writes entries to places of page tables that must be empty.

use super::error::DescriptorMapError;
use core::sync::atomic::Ordering::{Relaxed, Release};
use hotmem_pgtable::{AtomicU64, Entry, Format};

/// Writes the entry of a page, if the place is empty. Otherwise fails. Fails too if `entry` is empty,
/// because the format has no entry for the page's frame.
pub(super) fn set_if_empty<F: Format>(
    place: &AtomicU64,
    page: u64,
    entry: Entry<F>,
) -> Result<(), DescriptorMapError> {
    if entry.is_empty() {
        return Err(DescriptorMapError::NoFrame(page));
    }
    if place.load(Relaxed) != 0 {
        return Err(DescriptorMapError::AlreadyMapped(page));
    }
    // Release pairs with the address dependency of the processor's page walk.
    place.store(entry.bits(), Release);
    Ok(())
}
