//! Reserves addresses of this process for the memory of a hosted machine. The host allocates a page
//! when the process first accesses it.

use super::error::HostedError;
use hotmem::Bytes;
use rustix::{
    io::Errno,
    mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap},
};
use std::ptr::{NonNull, null_mut};

/// The alignment of the first address: the size of a pageblock, so that the host can back each
/// pageblock by one huge page.
const ALIGN: usize = 2 << 20;

/// A range of reserved addresses. Dropping it releases them.
pub(super) struct Reservation {
    start: NonNull<u8>,
    len: usize,
    /// The mapping, which is longer than the range by [`ALIGN`].
    mapping: NonNull<u8>,
}

/// The pages by which the host backs memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum HostPages {
    /// Pages of 4 KiB.
    Small,
    /// Transparent huge pages of 2 MiB, as far as the host has them.
    Huge,
}

// SAFETY: the value is an address and a length. Only unsafe code accesses the memory, through raw
// pointers.
unsafe impl Send for Reservation {}
// SAFETY: as for `Send`.
unsafe impl Sync for Reservation {}

impl Reservation {
    /// Reserves `size` bytes of addresses, without committing memory.
    pub(super) fn new(size: Bytes) -> Result<Reservation, HostedError> {
        let refused = |errno| HostedError::NotReserved(size, errno);
        let len = usize::try_from(size.0).map_err(|_| refused(Errno::NOMEM))?;
        let mapped = len.checked_add(ALIGN).ok_or(refused(Errno::NOMEM))?;
        // SAFETY: a new mapping at an address that the kernel chooses changes no existing mapping.
        let mapping = unsafe {
            let access = ProtFlags::READ | ProtFlags::WRITE;
            let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
            mmap_anonymous(null_mut(), mapped, access, flags)
        };
        let mapping =
            NonNull::<u8>::new(mapping.map_err(refused)?.cast()).ok_or(refused(Errno::NOMEM))?;
        // SAFETY: the mapping is longer than the range by more than what is skipped.
        let start = unsafe { mapping.add(mapping.align_offset(ALIGN)) };
        Ok(Reservation { start, len, mapping })
    }

    pub(super) fn address(&self) -> usize {
        self.start.addr().get()
    }

    /// Returns the address of the byte at this offset, or `None` if the offset lies outside.
    pub(super) fn byte_at(&self, offset: u64) -> Option<NonNull<u8>> {
        let offset = usize::try_from(offset).ok().filter(|&offset| offset < self.len)?;
        // SAFETY: the offset lies within the reservation.
        Some(unsafe { self.start.add(offset) })
    }

    /// Gives the memory of the `len` bytes that start at `offset` back to the host. The bytes read
    /// as zero afterwards. The caller ensures that nothing uses them.
    pub(super) fn discard(&self, offset: u64, len: Bytes) -> Result<(), Errno> {
        // SAFETY: the caller ensures that nothing uses the bytes.
        unsafe { self.advise(offset, len, Advice::LinuxDontNeed) }
    }

    /// Sets the pages by which the host backs the `len` bytes that start at `offset`, from the next
    /// time on that it backs them.
    pub(super) fn set_host_pages(
        &self,
        offset: u64,
        len: Bytes,
        pages: HostPages,
    ) -> Result<(), Errno> {
        let advice = match pages {
            HostPages::Small => Advice::LinuxNoHugepage,
            HostPages::Huge => Advice::LinuxHugepage,
        };
        // SAFETY: this advice changes no contents.
        unsafe { self.advise(offset, len, advice) }
    }

    /// Gives the host advice on the `len` bytes that start at `offset`, as far as they are
    /// reserved.
    ///
    /// # Safety
    /// If the advice changes the contents of the bytes, nothing may use them.
    unsafe fn advise(&self, offset: u64, len: Bytes, advice: Advice) -> Result<(), Errno> {
        let Some(start) = self.byte_at(offset) else { return Ok(()) };
        let max_len = self.address() + self.len - start.addr().get();
        let len = usize::try_from(len.0).map_or(max_len, |len| len.min(max_len));
        // SAFETY: the bytes lie within the reservation. The caller ensures the rest.
        unsafe { madvise(start.as_ptr().cast(), len, advice) }
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        // SAFETY: `new` made this mapping. Unsafe code may use addresses in it only while the
        // reservation exists.
        let _ = unsafe { munmap(self.mapping.as_ptr().cast(), self.len + ALIGN) };
    }
}
