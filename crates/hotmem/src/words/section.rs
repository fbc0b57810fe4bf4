//! The section word is the truth.
//!
//! A section is 128 MiB; each question about its 64 pageblocks is one 64-bit word. Clearing bits of
//! `free` by compare-exchange *is* the claim: the claimer owns those pageblocks, may write what it
//! likes, and publishes by setting bits. Beside the words, a 16-bit block state per pageblock says
//! how many frames of a *split* pageblock are free, and a frame bitmap says which.

use super::{BitmapFrame, FrameBitmap};
use crate::sync::{AtomicPtr, AtomicU64, Ordering};

/// The words of one section: one cache line.
#[repr(C, align(64))]
pub(crate) struct Section {
    /// Added: the memory is there and mapped.
    pub(crate) present: AtomicU64,
    /// Handed to the allocator.
    pub(crate) online: AtomicU64,
    /// Online for movable allocations only. Changes only while the pageblock is offline. Where
    /// nothing is present: a device's (see [`device`](Self::device)).
    pub(crate) movable: AtomicU64,
    /// Wholly free and claimable. Clearing a bit by compare-exchange is the claim.
    pub(crate) free: AtomicU64,
    /// A hint: some frames are free.
    pub(crate) partial: AtomicU64,
    /// Free, and the host holds its memory.
    pub(crate) reported: AtomicU64,
    /// Held by an isolation token; while not online, by an addition or a removal.
    pub(crate) isolated: AtomicU64,
    /// Frame bits of all the section's pageblocks; null until one is first divided. Until then
    /// those that are live are wholly taken.
    pub(crate) bitmaps: AtomicPtr<BitmapFrame>,
}

#[cfg(not(any(loom, hotmem_geometry = "small")))]
const _: () = assert!(size_of::<Section>() == 64);

impl Section {
    #[cfg(loom)]
    pub(crate) fn new() -> Section {
        Section {
            present: AtomicU64::new(0),
            online: AtomicU64::new(0),
            movable: AtomicU64::new(0),
            free: AtomicU64::new(0),
            partial: AtomicU64::new(0),
            reported: AtomicU64::new(0),
            isolated: AtomicU64::new(0),
            bitmaps: AtomicPtr::new(core::ptr::null_mut()),
        }
    }

    /// Device memory: there and mapped, but no RAM. Its zone, so to say, is its own.
    ///
    /// Relaxed: only the control path attaches, detaches and asks.
    pub(crate) fn device(&self) -> u64 {
        self.movable.load(Ordering::Relaxed) & !self.present.load(Ordering::Relaxed)
    }

    /// Claims as many of `wanted` as are free: which, and which of these the host had.
    ///
    /// Acquire: pairs with [`publish`](Self::publish), so that the claimer sees everything that
    /// was done to the pageblocks while they were somebody else's.
    pub(crate) fn claim_any(&self, wanted: u64) -> (u64, u64) {
        let mut free = self.free.load(Ordering::Relaxed);
        loop {
            let got = free & wanted;
            if got == 0 {
                return (0, 0);
            }
            match self.free.compare_exchange_weak(
                free,
                free & !got,
                Ordering::Acquire,
                Ordering::Relaxed,
            ) {
                Ok(_) => return (got, self.forget_reported(got)),
                Err(now) => free = now,
            }
        }
    }

    /// Claims exactly `wanted`, or nothing. Acquire: see [`claim_any`](Self::claim_any).
    pub(crate) fn claim_all(&self, wanted: u64) -> bool {
        let mut free = self.free.load(Ordering::Relaxed);
        while free & wanted == wanted {
            match self.free.compare_exchange_weak(
                free,
                free & !wanted,
                Ordering::Acquire,
                Ordering::Relaxed,
            ) {
                Ok(_) => {
                    self.forget_reported(wanted);
                    return true;
                }
                Err(now) => free = now,
            }
        }
        false
    }

    /// Gives up ownership of `blocks`: from here on anybody may claim them. Returns the word
    /// before; `about_to` sees what that is going to be. Release: pairs with the claim. `SeqCst`
    /// beyond that: whoever publishes then asks whether there is a reporter (see
    /// `frames/wakeup.rs`).
    pub(crate) fn publish(&self, blocks: u64, mut about_to: impl FnMut(u64)) -> u64 {
        let mut free = self.free.load(Ordering::Relaxed);
        loop {
            about_to(free);
            match self.free.compare_exchange_weak(
                free,
                free | blocks,
                Ordering::SeqCst,
                Ordering::Relaxed,
            ) {
                Ok(before) => return before,
                Err(now) => free = now,
            }
        }
    }

    /// `reported` is cleared by the claimer, while it is alone with the pageblocks; the next
    /// publish (Release) makes it visible, so Relaxed is enough. Returns what it was set for.
    fn forget_reported(&self, claimed: u64) -> u64 {
        let reported = self.reported.load(Ordering::Relaxed) & claimed;
        if reported != 0 {
            self.reported.fetch_and(!claimed, Ordering::Relaxed);
        }
        reported
    }

    /// The bitmap of the pageblock at `bit`; `None` before the section has any.
    ///
    /// Acquire pairs with the Release that installed the bitmap frame.
    #[inline]
    pub(crate) fn bitmap(&self, bit: usize) -> Option<&FrameBitmap> {
        let bitmaps = self.bitmaps.load(Ordering::Acquire);
        // SAFETY: a non-null pointer was installed by `Frames::install_bitmaps` or boot from a
        // frame of mapped memory that is given back only when every pageblock of the section is
        // offline or isolated and drained, so while anybody can hold a credit or own a pageblock
        // here.
        let frame = unsafe { bitmaps.as_ref() }?;
        frame.bitmaps.get(bit)
    }
}
