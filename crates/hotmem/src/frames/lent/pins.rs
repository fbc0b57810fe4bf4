//! Prevents the host from taking pinned memory: a device may access the memory, and a device's
//! access cannot wait for a page fault.
//!
//! The table of pins belongs to the instance: a pin needs no reporter, and stays when a reporter
//! ends. Only the control path writes the table (see `hotplug/pin.rs`). The code that pins, and the
//! code that gives memory to the host (the reporter or a balloon), synchronize like this:
//!
//! | code that pins | code that gives memory to the host |
//! |---|---|
//! | writes the table, then reads which memory the host has | marks memory as given, then reads the table |
//!
//! Each side has a `SeqCst` fence between its two steps. So at least one of the two sees what the
//! other has done, and undoes its own step.

use crate::addr::PfnRange;
use crate::frames::{CallContext, MAX_PINS};
use crate::invariant::OrRecordViolation;
use crate::platform::Platform;
use crate::range_error::{RangeError, RangeErrorKind};
use crate::sync::{AtomicU64, Ordering, fence, mutant, spin_hint};
use crate::words::{Block, FrameBitmap, SectionPart, SectionRef};

/// The number of times that a pin reads the state of a pageblock that is being allocated or freed.
/// After that, the pin fails as "busy".
const ATTEMPTS: usize = if cfg!(loom) { 2 } else { 1000 };

impl<'f, P: Platform> CallContext<'f, P> {
    fn first_pinned(&self, range: PfnRange) -> Option<PfnRange> {
        self.frames.pins.ranges().map(|pin| pin.intersection(range)).find(|part| !part.is_empty())
    }

    /// Returns the pageblocks of a section that have a pinned frame.
    pub(crate) fn pinned_in(&self, section: SectionRef<'_>) -> u64 {
        self.frames.pins.ranges().fold(0, |pinned, pin| pinned | section.mask_of(pin))
    }

    /// Returns the same as [`pinned_in`](Self::pinned_in). For callers that have just marked memory
    /// of the section as given to the host.
    pub(crate) fn pinned_after_mark(&self, section: SectionRef<'_>) -> u64 {
        fence(Ordering::SeqCst); // pairs with the fence in `insert_pin`
        self.pinned_in(section)
    }

    /// Marks `range` as lent to the host, so that it cannot be pinned. The caller has allocated
    /// `range`, and gives it to the host afterwards. `is_first` returns whether the caller has lent
    /// no other frame of the pageblock that these frames of `range` lie in. When the host has
    /// returned all that the caller lent of a pageblock, the caller calls
    /// [`end_lending`](Self::end_lending).
    ///
    /// Cost: 1 read-modify-write per pageblock, and 16 if the pageblock is divided and not lent yet;
    /// a read of [`MAX_PINS`] entries.
    ///
    /// # Errors
    /// [`RangeError`]: no pageblock has the mark that had none before.
    pub(crate) fn lend(
        &self,
        range: PfnRange,
        is_first: impl Fn(PfnRange) -> bool,
    ) -> Result<(), RangeError> {
        let refuse_pinned = || match self.first_pinned(range) {
            Some(pinned) => Err(RangeErrorKind::Pinned.at(pinned)),
            None => Ok(()),
        };
        refuse_pinned()?;
        let parts = || range.chunks(crate::geometry::PAGEBLOCK_FRAMES as u64);
        let lend_part = |part: PfnRange| {
            let lend = |block: &Block<'_>| {
                block.live_state().is_some() && block.state().lend(is_first(part))
            };
            match self.words().block_of(part.start()).filter(lend) {
                Some(block) => {
                    self.with_bitmap(block, |bitmap| bitmap.map(FrameBitmap::lend));
                    Ok(())
                }
                None => Err(RangeErrorKind::NotAllocated.at(part)),
            }
        };
        let mut lent = 0;
        let marked = parts().try_for_each(|part| lend_part(part).inspect(|()| lent += 1));
        let result = marked.and_then(|()| {
            fence(Ordering::SeqCst); // pairs with the fence in `insert_pin`
            refuse_pinned()
        });
        if result.is_err() {
            parts().take(lent).filter(|&part| is_first(part)).for_each(|part| {
                self.end_lending(part);
            });
        }
        result
    }

    /// Ends the mark of [`lend`](Self::lend) of the pageblock of `frames`: the host has returned all
    /// frames of it that the caller had lent. The caller still owns `frames`.
    pub(crate) fn end_lending(&self, frames: PfnRange) {
        if let Some(block) = self.words().block_of(frames.start()).or_record_violation() {
            block.state().end_lending();
        }
    }

    /// Returns the pinned ranges.
    #[cfg(not(loom))]
    pub(super) fn pinned_ranges(&self) -> impl Iterator<Item = PfnRange> + use<'f, P> {
        self.frames.pins.ranges()
    }

    /// Pins `range`, so that it is not given to the host from now on. Fails if a part of `range` is
    /// lent to the host, isolated or being reported. Reported parts stay free, and are no longer
    /// reported. Control path only.
    pub(crate) fn insert_pin(self, range: PfnRange) -> Result<(), RangeError> {
        if range.is_empty() {
            return Err(RangeErrorKind::Empty.at(range));
        }
        if !self.frames.pins.insert(range) {
            return Err(RangeErrorKind::TooMany(MAX_PINS).at(range));
        }
        // Pairs with the fences in `pinned_after_mark` and `lend`: see the head of this file.
        fence(Ordering::SeqCst);
        let obstacle =
            self.words().section_parts(range).find_map(|SectionPart { section, blocks }| {
                // Acquire: makes the words visible that were written before the memory came online.
                let online = blocks & section.online.load(Ordering::Acquire);
                let mut in_use = section.blocks(online & !section.free.load(Ordering::Acquire));
                in_use.find_map(|block| pin_obstacle(block).map(|kind| kind.at(block.range())))
            });
        mutant!("a pin does not check what the host was given" => return Ok(()));
        if let Some(error) = obstacle {
            self.frames.pins.remove(range);
            return Err(error);
        }
        self.words().section_parts(range).for_each(|part| self.take_from_host(part));
        Ok(())
    }

    /// Removes a pin. Returns whether exactly this range was pinned. Control path only.
    pub(crate) fn remove_pin(&self, range: PfnRange) -> bool {
        if !self.frames.pins.remove(range) {
            return false;
        }
        // Pairs with the fence in `Wakeup::sleep`: either the reporter finds the memory that is no
        // longer pinned, or this function wakes the reporter.
        fence(Ordering::SeqCst);
        for SectionPart { section, blocks } in self.words().section_parts(range) {
            section.blocks(blocks).for_each(|block| block.state().forget_seen());
        }
        if self.frames.wakeup().wake() {
            self.frames.platform().wake_reporter();
        }
        true
    }

    /// Claims the reported pageblocks and publishes them again, so that they are free and not
    /// reported.
    fn take_from_host(&self, SectionPart { section, blocks }: SectionPart<'_>) {
        let reported = blocks & section.reported.load(Ordering::Acquire);
        if reported == 0 {
            return;
        }
        self.start_hiding();
        let claimed = self.claim_any(section, reported);
        if claimed != 0 {
            self.publish_blocks(section, claimed);
        }
    }
}

/// Returns the reason why a pageblock cannot be pinned, if there is one. The pageblock must not be
/// free.
fn pin_obstacle(block: Block<'_>) -> Option<RangeErrorKind> {
    let has_bit = |word: &AtomicU64| word.load(Ordering::Acquire) & block.mask() != 0;
    for _ in 0..ATTEMPTS {
        let state = block.state().load();
        if state.is_reporting() {
            return Some(RangeErrorKind::Reporting);
        }
        let is_in_use = state.is_live() || state.holds_descriptors();
        if is_in_use && state.is_isolated() || has_bit(&block.section().isolated) {
            return Some(RangeErrorKind::Isolated);
        }
        if state.is_lent() {
            return Some(RangeErrorKind::Lent);
        }
        if is_in_use || has_bit(&block.section().free) || !has_bit(&block.section().online) {
            return None;
        }
        spin_hint();
    }
    Some(RangeErrorKind::Busy)
}
