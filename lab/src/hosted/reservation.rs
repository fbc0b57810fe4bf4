//! Address space that the host commits page by page, as it is touched.

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

// SAFETY: the value is an address and a length, and its memory is accessed only by unsafe code
// through raw pointers.
unsafe impl Send for Reservation {}
// SAFETY: the same.
unsafe impl Sync for Reservation {}

impl Reservation {
    pub(super) fn new(size: Bytes) -> Result<Reservation, HostedError> {
        let refused = |errno| HostedError::NotReserved(size, errno);
        let len = usize::try_from(size.0).map_err(|_| refused(Errno::NOMEM))?;
        // SAFETY: a new mapping at an address that the kernel chooses changes no existing mapping.
        let start = unsafe {
            let access = ProtFlags::READ | ProtFlags::WRITE;
            let kind = MapFlags::PRIVATE | MapFlags::NORESERVE;
            mmap_anonymous(null_mut(), len, access, kind)
        };
        let start = NonNull::new(start.map_err(refused)?.cast()).ok_or(refused(Errno::NOMEM))?;
        Ok(Reservation { start, len })
    }

    pub(super) fn address(&self) -> usize {
        self.start.addr().get()
    }

    /// Returns the byte at this offset.
    pub(super) fn at(&self, offset: u64) -> Option<NonNull<u8>> {
        let offset = usize::try_from(offset).ok().filter(|&offset| offset < self.len)?;
        // SAFETY: the offset lies within the reservation.
        Some(unsafe { self.start.add(offset) })
    }

    /// Returns the memory of these bytes to the host. They read as zero afterwards. The caller
    /// ensures that nothing uses them.
    pub(super) fn discard(&self, offset: u64, len: Bytes) -> Result<(), Errno> {
        let Some(start) = self.at(offset) else { return Ok(()) };
        let most = self.address() + self.len - start.addr().get();
        let len = usize::try_from(len.0).map_or(most, |len| len.min(most));
        // SAFETY: the bytes lie within the reservation, and nothing uses them.
        unsafe { madvise(start.as_ptr().cast(), len, Advice::LinuxDontNeed) }
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        // SAFETY: this is the mapping made in `new`. Unsafe code that got addresses in it may use
        // them only while the reservation exists.
        let _ = unsafe { munmap(self.start.as_ptr().cast(), self.len) };
    }
}
