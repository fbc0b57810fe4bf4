//! Pins: memory that the host must keep, because a device may reach it and cannot fault.
//!
//! The table belongs to the machine: a pin needs no reporter and outlives every one. Only the slow
//! side writes it (see `hotplug/pin.rs`). Whoever gives memory to the host, the reporter or a
//! balloon, meets a pin like this:
//!
//! | who pins | who gives |
//! |---|---|
//! | writes the table, then looks at what the host has | marks the memory as given, then looks at the table |
//!
//! A `SeqCst` fence stands between the two steps of each, so at least one of the two sees what the
//! other has done, and gives way.

use super::{Frames, MAX_PINS};
use crate::addr::PfnRange;
use crate::platform::Platform;
use crate::sync::{AtomicU64, Ordering, fence, mutant, spin_hint};
use crate::words::{Block, Part, SectionRef};
use core::fmt;

/// Looks that are taken at a pageblock in somebody's hands before giving up.
const LOOKS: usize = if cfg!(loom) { 2 } else { 1000 };

/// Why a range could not be pinned. Nothing has changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PinError {
    /// No frames.
    Empty,
    /// The host works on a report of this pageblock: try again when it is back.
    Out(PfnRange),
    /// An isolation token holds this pageblock: the memory is going offline, or its holder may be
    /// giving it to the host.
    Held(PfnRange),
    /// Some of this pageblock was [given to the host](Frames::lend), by a balloon or as a hint, and
    /// the pageblock has not been wholly free since.
    Lent(PfnRange),
    /// This pageblock is in the middle of an allocation or a free: try again.
    Busy(PfnRange),
    /// [`MAX_PINS`] ranges are pinned.
    TooMany,
}

/// Why memory must not go to the host.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LendError {
    /// This part of it is [pinned](crate::Hotplug::pin).
    Pinned(PfnRange),
    /// This part of it is not allocated.
    NotAllocated(PfnRange),
}

impl<P> Frames<P> {
    /// Whether any of `range` is [pinned](crate::Hotplug::pin). Context: any. Cost: a look at
    /// [`MAX_PINS`] entries.
    #[must_use]
    pub fn is_pinned(&self, range: PfnRange) -> bool {
        self.first_pinned(range).is_some()
    }

    fn first_pinned(&self, range: PfnRange) -> Option<PfnRange> {
        self.pins.ranges().map(|pin| pin.intersection(range)).find(|part| !part.is_empty())
    }

    /// The pageblocks of a section that have a pinned frame.
    pub(crate) fn pinned_in(&self, section: SectionRef<'_>) -> u64 {
        self.pins.ranges().fold(0, |pinned, pin| pinned | section.mask_of(pin))
    }

    /// The same for whoever has marked memory of the section as given to the host.
    pub(crate) fn pinned_after_mark(&self, section: SectionRef<'_>) -> u64 {
        fence(Ordering::SeqCst); // pairs with the one in `insert_pin`
        self.pinned_in(section)
    }
}

impl<P: Platform> Frames<P> {
    /// Marks `range`, which the caller has allocated, as given to the host: it cannot be pinned. To
    /// be called before the host learns of it. Freeing it is all that has to be done when it comes
    /// back; the mark stays on a pageblock until all of it is free.
    ///
    /// Context: any. Cost: a read-modify-write a pageblock, and a look at [`MAX_PINS`] entries.
    ///
    /// # Errors
    /// [`LendError`]: the host must not be given it.
    pub fn lend(&self, range: PfnRange) -> Result<(), LendError> {
        let refuse_pinned = || match self.first_pinned(range) {
            Some(pinned) => Err(LendError::Pinned(pinned)),
            None => Ok(()),
        };
        refuse_pinned()?;
        let blocks = range.chunks(crate::geometry::PAGEBLOCK_FRAMES as u64);
        for piece in blocks {
            if !self.words.block_of(piece.start()).is_some_and(|block| block.state.lend()) {
                return Err(LendError::NotAllocated(piece));
            }
        }
        fence(Ordering::SeqCst); // pairs with the one in `insert_pin`
        refuse_pinned()
    }

    /// The control path only: from now on `range` is not given to the host. What the host has been
    /// given of it is refused, and what was reported is taken back.
    pub(crate) fn insert_pin(&self, range: PfnRange) -> Result<(), PinError> {
        if range.is_empty() {
            return Err(PinError::Empty);
        }
        if !self.pins.insert(range) {
            return Err(PinError::TooMany);
        }
        // Pairs with those in `pinned_after_mark` and `lend`: see above.
        fence(Ordering::SeqCst);
        let given = self.words.parts(range).find_map(|Part { section, blocks }| {
            // Acquire: the words that came with being online.
            let online = blocks & section.online.load(Ordering::Acquire);
            let mut in_use = section.blocks(online & !section.free.load(Ordering::Acquire));
            in_use.find_map(|block| why_not_pinned(&block))
        });
        mutant!("a pin does not look at what was given" => return Ok(()));
        if let Some(error) = given {
            self.pins.remove(range);
            return Err(error);
        }
        self.words.parts(range).for_each(|part| self.take_from_host(part));
        Ok(())
    }

    /// The control path only. Whether exactly this range was pinned.
    pub(crate) fn remove_pin(&self, range: PfnRange) -> bool {
        if !self.pins.remove(range) {
            return false;
        }
        // Pairs with the one in `Wakeup::sleep`: the reporter finds what is no longer pinned, or it
        // is woken.
        fence(Ordering::SeqCst);
        for Part { section, blocks } in self.words.parts(range) {
            section.blocks(blocks).for_each(|block| block.state.forget_seen());
        }
        if self.wakeup().wake() {
            self.platform().wake_reporter();
        }
        true
    }

    /// What is free and reported is free and not reported from now on.
    fn take_from_host(&self, Part { section, blocks }: Part<'_>) {
        let reported = blocks & section.reported.load(Ordering::Acquire);
        if reported == 0 {
            return;
        }
        let mut moves = self.no_moves_yet();
        moves.start();
        let (claimed, withdrawn) = section.claim_any(reported);
        self.wakeup().note_withdrawn(withdrawn);
        if claimed != 0 {
            self.show_free(section, claimed, &mut moves);
        }
    }
}

/// Why a pageblock that was not free a moment ago cannot be pinned.
fn why_not_pinned(block: &Block<'_>) -> Option<PinError> {
    let is = |word: &AtomicU64| word.load(Ordering::Acquire) & block.mask() != 0;
    for _ in 0..LOOKS {
        let state = block.state.load();
        if state.is_out() {
            return Some(PinError::Out(block.range()));
        }
        let is_in_use = state.is_live() || state.is_kept();
        if is_in_use && state.is_isolated() || is(&block.section.isolated) {
            return Some(PinError::Held(block.range()));
        }
        if state.is_lent() {
            return Some(PinError::Lent(block.range()));
        }
        if is_in_use || is(&block.section.free) || !is(&block.section.online) {
            return None;
        }
        spin_hint();
    }
    Some(PinError::Busy(block.range()))
}

impl fmt::Display for PinError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PinError::Empty => f.write_str("no frames to pin"),
            PinError::Out(range) => write!(f, "{range} is out for reporting"),
            PinError::Held(range) => write!(f, "{range} is isolated"),
            PinError::Lent(range) => write!(f, "the host was given some of {range}"),
            PinError::Busy(range) => write!(f, "{range} is changing hands, try again"),
            PinError::TooMany => write!(f, "{MAX_PINS} ranges are pinned already"),
        }
    }
}

impl core::error::Error for PinError {}

impl fmt::Display for LendError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LendError::Pinned(range) => write!(f, "{range} is pinned"),
            LendError::NotAllocated(range) => write!(f, "{range} is not allocated"),
        }
    }
}

impl core::error::Error for LendError {}
