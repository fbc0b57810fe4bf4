//! Defines the words of a section, and how pageblocks are claimed and published.
//!
//! A section is 128 MiB. One 64-bit word answers one question about its 64 pageblocks. Clearing
//! bits of `free` by compare-exchange *is* the claim: the claimer owns those pageblocks, may write
//! to them, and publishes them by setting the bits. Besides the words, a block state for each
//! pageblock says who owns it, and a frame bitmap says which frames of a *divided* pageblock are
//! free.

use super::AtomicBlockState;
use super::bitmaps::Bitmaps;
use crate::addr::Pfn;
use crate::geometry::{PAGEBLOCK_FRAMES, SECTION_PAGEBLOCKS};
use crate::sync::{AtomicU64, Ordering, mutant, untracked};
use core::ops::Deref;

/// The words of one section, which fill three cache lines. Most allocations and frees of frames
/// read only the first line, and no code writes to that line while memory stays online.
#[repr(C, align(64))]
pub(crate) struct Section {
    /// The pointers to the frame bitmaps of the section's pageblocks. One frame of memory holds the
    /// bitmaps of 32 pageblocks, and is installed before one of these is first divided. Until then,
    /// each live pageblock among the 32 is allocated as a whole.
    pub(crate) bitmaps: Bitmaps,
    /// The zone of each pageblock: a bit is set if only movable allocations may use the pageblock.
    /// A bit changes only while its pageblock is offline. If the pageblock is not present, a set
    /// bit means device memory (see [`device_blocks`](Self::device_blocks)).
    pub(crate) movable: AtomicU64,
    /// Whether the pageblock is present: added and mapped.
    pub(crate) present: AtomicU64,
    /// Whether the allocator may use the pageblock.
    pub(crate) online: AtomicU64,
    /// Whether frames of the pageblock may hold metadata: see [`note_metadata`](Self::note_metadata).
    metadata: untracked::AtomicU64,
    changing: ChangingWords,
    states: [AtomicBlockState; SECTION_PAGEBLOCKS],
}

/// The values of two words of a section before a [publish](Section::try_publish_beside_free).
pub(crate) struct BeforePublish {
    pub(crate) free: u64,
    pub(crate) movable: u64,
}

/// The words of a section that are written when pageblocks are allocated and freed.
#[repr(C, align(64))]
pub(crate) struct ChangingWords {
    /// Whether the pageblock is wholly free and can be claimed. Clearing a bit by compare-exchange
    /// is the claim.
    pub(crate) free: AtomicU64,
    /// A hint that some frames of the pageblock are free.
    pub(crate) partial: AtomicU64,
    /// Whether two neighbouring frames of the pageblock may be free. A search that found none clears
    /// the bit, after which all words of the pageblock's bitmap are marked (see
    /// `words/word_bits.rs`). A free into a marked word sets the bit again, as does each division.
    pub(crate) may_have_runs: AtomicU64,
    /// The grain of the pageblock, if it is divided: set if it is for runs (see `words/grain.rs`).
    pub(super) runs: untracked::AtomicU64,
    /// Whether the pageblock is free and its RAM has been given to the host. If the pageblock is
    /// offline, a set bit means that its removal was dropped (see
    /// [`orphaned_blocks`](Section::orphaned_blocks)).
    pub(crate) reported: AtomicU64,
    /// Whether an isolation token owns the pageblock, or the pageblock is offline and an addition
    /// or a removal is working on it.
    pub(crate) isolated: AtomicU64,
    /// Whether the marks in the words of the pageblock's bitmap say that free frames are zero (see
    /// `frames/zeroed.rs`).
    pub(crate) zero_words: AtomicU64,
    /// Whether the pageblock is wholly free, or offline since it was added, and all of it is known
    /// to be zero. Only an owner changes a bit: it sets the bit before the publish, and each claim
    /// clears it. The control path owns offline pageblocks.
    zeroed: AtomicU64,
}

/// Which of the pageblocks that a call owns are zero. The claim has cleared their bits in `zeroed`, so
/// a call that drops this value only forgets that they are. A call that writes to one of them must not
/// use the value any more.
#[derive(Clone, Copy)]
pub(crate) struct Zeroed(u64);

impl Zeroed {
    /// No pageblock is known to be zero.
    pub(crate) const NONE: Zeroed = Zeroed(0);

    /// Returns pageblocks that the caller owns and knows to be zero.
    pub(crate) fn known(blocks: u64) -> Zeroed {
        Zeroed(blocks)
    }

    /// Returns those of these pageblocks that are in `blocks`.
    pub(crate) fn among(self, blocks: u64) -> Zeroed {
        Zeroed(self.0 & blocks)
    }

    /// Returns whether all of `blocks` are zero.
    pub(crate) fn has_all(self, blocks: u64) -> bool {
        self.0 & blocks == blocks
    }
}

#[cfg(not(any(loom, hotmem_geometry = "small")))]
const _: () = assert!(size_of::<Section>() == 192);

impl Deref for Section {
    type Target = ChangingWords;
    fn deref(&self) -> &ChangingWords {
        &self.changing
    }
}

impl Section {
    #[cfg(loom)]
    pub(crate) fn new() -> Section {
        let word = || AtomicU64::new(0);
        Section {
            bitmaps: Bitmaps::new(),
            movable: word(),
            present: word(),
            online: word(),
            metadata: untracked::AtomicU64::new(0),
            changing: ChangingWords {
                free: word(),
                partial: word(),
                may_have_runs: word(),
                runs: untracked::AtomicU64::new(0),
                reported: word(),
                isolated: word(),
                zero_words: word(),
                zeroed: word(),
            },
            states: core::array::from_fn(|_| AtomicBlockState::new()),
        }
    }

    /// Returns whether the `partial` bit of a frame's pageblock is set. `SeqCst` orders this load
    /// after the caller's write, which freed frames of the pageblock or opened words of its bitmap.
    #[inline]
    pub(crate) fn is_partial(&self, frame: Pfn) -> bool {
        self.partial.load(Ordering::SeqCst) & mask_at(frame) != 0
    }

    /// Records that frames of `blocks` will hold metadata. A bit stays set until its pageblock is
    /// removed, so that a pageblock without it certainly has no metadata.
    ///
    /// Relaxed: the bit is set before the frame becomes metadata; for a reader that does not see it
    /// yet, the frame is not metadata yet.
    pub(crate) fn note_metadata(&self, blocks: u64) {
        if self.metadata.load(Ordering::Relaxed) & blocks != blocks {
            self.metadata.fetch_or(blocks, Ordering::Relaxed);
        }
    }

    /// Forgets the metadata of `blocks`, which are removed. Relaxed: no frame of them is allocated.
    pub(crate) fn forget_metadata(&self, blocks: u64) {
        self.metadata.fetch_and(!blocks, Ordering::Relaxed);
    }

    /// Returns whether a frame of pageblock `block`, a mask, may hold metadata. Relaxed: as in
    /// [`note_metadata`](Self::note_metadata).
    pub(crate) fn may_hold_metadata(&self, block: u64) -> bool {
        self.metadata.load(Ordering::Relaxed) & block != 0
    }

    /// Returns the block state of pageblock `bit`, a number below 64.
    pub(crate) fn state(&self, bit: usize) -> &AtomicBlockState {
        &self.states[bit % SECTION_PAGEBLOCKS]
    }

    /// Returns the pageblocks of device memory, which is mapped but is no RAM: those with `movable`
    /// set and `present` clear.
    ///
    /// Relaxed: only the control path attaches and detaches device memory, and only the control
    /// path relies on this result.
    pub(crate) fn device_blocks(&self) -> u64 {
        self.movable.load(Ordering::Relaxed) & !self.present.load(Ordering::Relaxed)
    }

    /// Returns the pageblocks whose removal was dropped before it was committed or abandoned: those
    /// that are present, offline and isolated, and have `reported` set.
    ///
    /// Acquire: pairs with the change that took a pageblock offline, so that `reported` is no older.
    /// Only the drop of a removal sets `reported` for offline memory, and only the control path
    /// relies on this result.
    pub(crate) fn orphaned_blocks(&self) -> u64 {
        let offline = self.present.load(Ordering::Acquire) & !self.online.load(Ordering::Acquire);
        offline & self.isolated.load(Ordering::Acquire) & self.reported.load(Ordering::Acquire)
    }

    /// Returns the pageblocks that are present, device memory, isolated, or being added or removed.
    pub(crate) fn blocks_in_use(&self) -> u64 {
        let mapped_blocks = self.present.load(Ordering::Acquire) | self.device_blocks();
        mapped_blocks | self.isolated.load(Ordering::Acquire)
    }

    /// Claims the free pageblocks among `blocks`, and returns them. They keep their marks as
    /// reported, and are no longer known to be zero.
    ///
    /// Acquire pairs with [`publish`](Self::publish), so that the claimer sees everything that
    /// earlier owners did to the pageblocks.
    pub(crate) fn claim_any(&self, blocks: u64) -> u64 {
        let mut free = self.free.load(Ordering::Relaxed);
        loop {
            let claimed = free & blocks;
            if claimed == 0 {
                return 0;
            }
            match self.free.compare_exchange_weak(
                free,
                free & !claimed,
                Ordering::Acquire,
                Ordering::Relaxed,
            ) {
                Ok(_) => {
                    mutant!("an isolation keeps the mark that a pageblock is zero" => return claimed);
                    self.take_zeroed(claimed);
                    return claimed;
                }
                Err(now) => free = now,
            }
        }
    }

    /// Claims all pageblocks of `blocks`, or none. If it has claimed them, returns which of them are
    /// zero. Acquire: see [`claim_any`](Self::claim_any).
    pub(crate) fn claim_all(&self, blocks: u64) -> Option<Zeroed> {
        let mut free = self.free.load(Ordering::Relaxed);
        while free & blocks == blocks {
            match self.free.compare_exchange_weak(
                free,
                free & !blocks,
                Ordering::Acquire,
                Ordering::Relaxed,
            ) {
                Ok(_) => return Some(self.take_marks(blocks)),
                Err(now) => free = now,
            }
        }
        None
    }

    /// Claims `blocks`, which are free in `free_before`, in one attempt, and returns whether some of
    /// them have marks: then the caller must [take the marks](Self::take_marks). Returns `None` if the
    /// value of `free` is no longer `free_before`. Acquire: see [`claim_any`](Self::claim_any).
    #[inline(always)]
    pub(crate) fn claim_once(&self, free_before: u64, blocks: u64) -> Option<bool> {
        let remaining = free_before & !blocks;
        self.free
            .compare_exchange(free_before, remaining, Ordering::Acquire, Ordering::Relaxed)
            .ok()?;
        let marked = self.reported.load(Ordering::Relaxed) | self.zeroed.load(Ordering::Relaxed);
        Some(marked & blocks != 0)
    }

    /// Clears the bits in `reported` and `zeroed` of pageblocks that the caller has claimed, and
    /// returns which of them are zero. Relaxed: see [`forget_reported`](Self::forget_reported).
    pub(crate) fn take_marks(&self, claimed: u64) -> Zeroed {
        self.forget_reported(claimed);
        self.take_zeroed(claimed)
    }

    /// Clears the `zeroed` bits of pageblocks that the caller owns, and returns those of them that
    /// were set. Relaxed: as in [`forget_reported`](Self::forget_reported).
    pub(crate) fn take_zeroed(&self, claimed: u64) -> Zeroed {
        let zeroed = self.zeroed.load(Ordering::Relaxed) & claimed;
        if zeroed != 0 {
            mutant!("a claim keeps the mark that a pageblock is zero" => return Zeroed(zeroed));
            self.zeroed.fetch_and(!claimed, Ordering::Relaxed);
        }
        Zeroed(zeroed)
    }

    /// Marks pageblocks as zero. The caller owns them, knows that they are zero, and publishes them
    /// next, or has added them. Relaxed: the Release of the publish makes the mark visible.
    pub(crate) fn mark_zeroed(&self, Zeroed(blocks): Zeroed) {
        if blocks != 0 {
            self.zeroed.fetch_or(blocks, Ordering::Relaxed);
        }
    }

    /// Forgets which memory is zero. The marks of bitmap words stay, and no longer mean this.
    /// Relaxed: no other code allocates or frees meanwhile.
    pub(crate) fn forget_zeroes(&self) {
        self.zeroed.store(0, Ordering::Relaxed);
        self.zero_words.store(0, Ordering::Relaxed);
    }

    /// Returns the pageblocks that are marked as zero: a snapshot.
    pub(crate) fn zeroed_blocks(&self) -> u64 {
        self.zeroed.load(Ordering::Relaxed)
    }

    /// Publishes a pageblock in one attempt, if another pageblock of its zone is free in this
    /// section. Returns `None`, and changes nothing, if no other pageblock of the zone is free, if
    /// this one is free already, or if another CPU changes `free` at the same time. `SeqCst`: see
    /// [`publish`](Self::publish).
    #[inline(always)]
    pub(crate) fn try_publish_beside_free(&self, block: u64) -> Option<BeforePublish> {
        let before = self.free.load(Ordering::Relaxed);
        let movable = self.movable.load(Ordering::Relaxed);
        let zone = if movable & block == 0 { !movable } else { movable };
        if before & zone == 0 || before & block != 0 {
            return None;
        }
        let after = before | block;
        self.free.compare_exchange(before, after, Ordering::SeqCst, Ordering::Relaxed).ok()?;
        Some(BeforePublish { free: before, movable })
    }

    /// Gives up ownership of `blocks`: from now on any CPU may claim them. Returns the previous
    /// value of `free`. Before each attempt, calls `about_to` with the value of `free` that the
    /// attempt expects. Release pairs with the Acquire of the claim. `SeqCst` orders this write
    /// before the caller's next load, which checks whether a reporter is on (see
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

    /// Clears the `reported` bits of pageblocks that the caller has claimed, and returns those of
    /// them that were set. Relaxed: only the claimer accesses these bits, and the Release of the
    /// next publish makes the change visible.
    #[inline]
    pub(crate) fn forget_reported(&self, claimed: u64) -> u64 {
        let reported = self.reported.load(Ordering::Relaxed) & claimed;
        if reported != 0 {
            self.reported.fetch_and(!claimed, Ordering::Relaxed);
        }
        reported
    }
}

/// Returns the bit that stands for the pageblock of a frame in the words of its section.
pub(super) fn mask_at(frame: Pfn) -> u64 {
    1 << (frame.number() / PAGEBLOCK_FRAMES as u64 % SECTION_PAGEBLOCKS as u64)
}
