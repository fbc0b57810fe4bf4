//! Reserves addresses of this process for the memory of a hosted machine. The host allocates a page
//! when the process first accesses it.

use super::error::HostedError;
use hotmem::Bytes;
use rustix::{
    io::Errno,
    mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap},
};
use std::ptr::{NonNull, null_mut};

/// A range of reserved addresses. Dropping it releases them.
pub(super) struct Reservation {
    start: NonNull<u8>,
    len: usize,
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
        // SAFETY: a new mapping at an address that the kernel chooses changes no existing mapping.
        let start = unsafe {
            let access = ProtFlags::READ | ProtFlags::WRITE;
            let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
            mmap_anonymous(null_mut(), len, access, flags)
        };
        let start = NonNull::new(start.map_err(refused)?.cast()).ok_or(refused(Errno::NOMEM))?;
        Ok(Reservation { start, len })
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
        let Some(start) = self.byte_at(offset) else { return Ok(()) };
        let max_len = self.address() + self.len - start.addr().get();
        let len = usize::try_from(len.0).map_or(max_len, |len| len.min(max_len));
        // SAFETY: the bytes lie within the reservation, and the caller ensures that nothing uses
        // them.
        unsafe { madvise(start.as_ptr().cast(), len, Advice::LinuxDontNeed) }
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        // SAFETY: `new` made this mapping. Unsafe code may use addresses in it only while the
        // reservation exists.
        let _ = unsafe { munmap(self.start.as_ptr().cast(), self.len) };
    }
}
