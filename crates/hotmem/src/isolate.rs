//! The isolation token: memory that nobody can allocate any more.
//!
//! Reporting, ballooning and unplugging are the same act: isolate, let somebody work on it, and
//! leave by one of the exits. Isolating a free pageblock claims it; isolating one in use flags its
//! counter, so that no credit is granted after that and the last free hands the pageblock to the
//! token instead of to the allocator. `isolated` says which pageblocks a token has captured; it is
//! set after the capture, so a pageblock that is neither free nor live nor `isolated` is in
//! somebody's hands for a moment.
//!
//! # Metadata
//! A section's frame of lines (see `frames/split.rs`) is never free, reported or migrated. When
//! memory goes and a token holds everything of a section that is online, nobody can reach the lines
//! any more, and they are dropped. So they do not hinder the removal of their section; only a
//! smaller part of a section that happens to hold them stays until the rest of the section is free
//! as well. Only the slow side does this: meanwhile no other part of the section may come online
//! and be divided. Other metadata lies in boot memory, or in what was there when boot
//! memory was full, and stays ([`InUse::Metadata`]).

use crate::addr::{Pfn, PfnRange};
use crate::frames::{Block, Frames};
use crate::geometry::{
    LINE_WORD_BITS, PAGEBLOCK_FRAMES, SECTION_FRAMES, SECTION_PAGEBLOCKS, bits_of, mask,
};
use crate::platform::Platform;
use crate::section::{ALL, Capture, ISOLATED, LIVE, POISON, Section, count};
use crate::sync::{Ordering, spin_hint};
use core::fmt;

/// Looks that are taken at a pageblock in somebody's hands before giving up.
const LOOKS: usize = if cfg!(loom) { 2 } else { 1000 };

/// Whole pageblocks that nobody can allocate. A free of a part that is still in use goes on as
/// always and leaves it here.
///
/// There are three exits: [`release`](Self::release), [`mark_reported`](Self::mark_reported) and
/// [`Hotplug::take_offline`](crate::Hotplug::take_offline). A token that is forgotten or dropped leaves its
/// pageblocks isolated and counted, never reused: a host may still be working on them.
#[must_use = "dropping it leaves the memory isolated for good"]
pub struct Isolation<'f, P> {
    frames: &'f Frames<P>,
    range: PfnRange,
    /// All of it was wholly free when it was captured, so that nothing of it is in use.
    was_free: bool,
}

/// Why memory could not be isolated. Nothing has changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum IsolateError {
    /// No frames, or no whole pageblocks.
    Unaligned(PfnRange),
    /// This part of it is not online.
    NotOnline(PfnRange),
    /// Another token holds this pageblock.
    HeldByAnother(PfnRange),
    /// This pageblock is out for reporting: try again when the host is done with it.
    Reporting(PfnRange),
    /// This pageblock is in the middle of an allocation or a free: try again.
    Busy(PfnRange),
}

/// What keeps isolated memory from being drained.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum InUse {
    /// These frames, a run within one pageblock, are allocated.
    Frames(PfnRange),
    /// These frames hold metadata: of memory that is still online, or of an announced region.
    Metadata(PfnRange),
    /// An allocation or a free in this pageblock is in flight: look again.
    InFlight(PfnRange),
}

impl InUse {
    /// Where.
    #[must_use]
    pub const fn range(self) -> PfnRange {
        match self {
            InUse::Frames(range) | InUse::Metadata(range) | InUse::InFlight(range) => range,
        }
    }
}

impl<P: Platform> Frames<P> {
    /// Isolates all of `range`, whole pageblocks that are online.
    ///
    /// Context: any, though it is long: O(pageblocks). Calls nothing back, holds no locks, waits a
    /// bounded time for a pageblock that is changing hands.
    ///
    /// # Errors
    /// [`IsolateError`]; everything is as it was.
    pub fn isolate(&self, range: PfnRange) -> Result<Isolation<'_, P>, IsolateError> {
        if range.is_empty() || !range.is_pageblock_aligned() {
            return Err(IsolateError::Unaligned(range));
        }
        // If it fails half-way, what was captured was hidden all the time.
        let mut moves = self.no_moves_yet();
        moves.start();
        let mut isolation = Isolation { frames: self, range: PfnRange::EMPTY, was_free: true };
        for piece in range.sections() {
            match self.capture(piece) {
                Ok(was_free) => {
                    isolation.range = range.split_at(piece.end()).0;
                    isolation.was_free &= was_free;
                }
                Err(error) => {
                    isolation.release();
                    return Err(error);
                }
            }
        }
        Ok(isolation)
    }

    /// Captures a part of one section, all or nothing. Says whether all of it was wholly free.
    fn capture(&self, piece: PfnRange) -> Result<bool, IsolateError> {
        let Some((slot, index, wanted)) = self.word_of(piece) else {
            return Err(IsolateError::NotOnline(piece));
        };
        let section = self.section(slot, index).ok_or(IsolateError::NotOnline(piece))?;
        // Acquire: the words that came with being online.
        let offline = wanted & !section.online.load(Ordering::Acquire);
        if offline != 0 {
            return Err(IsolateError::NotOnline(self.first_block(slot, index, offline)));
        }
        let mut captured = section.claim_any(wanted);
        section.isolated.fetch_or(captured, Ordering::AcqRel);
        let in_use = wanted & !captured;
        for bit in bits_of(in_use) {
            let Some(block) = self.block(slot, index, bit) else { continue };
            match capture_block(&block) {
                Capture::Owned | Capture::Flagged => {
                    section.isolated.fetch_or(block.mask(), Ordering::AcqRel);
                    captured |= block.mask();
                }
                failed => {
                    self.release_in(slot, index, captured);
                    let range = self.first_block(slot, index, block.mask());
                    return Err(match failed {
                        Capture::HeldByAnother => IsolateError::HeldByAnother(range),
                        Capture::Reporting => IsolateError::Reporting(range),
                        _ => IsolateError::Busy(range),
                    });
                }
            }
        }
        Ok(in_use == 0)
    }

    /// Gives captured pageblocks of a section back to the allocator.
    fn release_in(&self, slot: usize, index: usize, captured: u64) {
        let Some(section) = self.section(slot, index) else { return };
        let mut moves = self.no_moves_yet();
        moves.start();
        section.isolated.fetch_and(!captured, Ordering::AcqRel);
        let mut owned = 0;
        for bit in bits_of(captured) {
            let Some(block) = self.block(slot, index, bit) else { continue };
            let before = block.counter.release();
            if before & LIVE == 0 {
                owned |= block.mask();
            } else if count(before) > 0 {
                self.show_partial(&block);
            }
        }
        let owned = self.divide_around_poison(slot, index, owned, &mut moves);
        if owned != 0 {
            self.show_free(slot, index, owned, &mut moves);
        }
    }

    /// The parts of `range` by section, as words. What is not announced is left out.
    pub(crate) fn words_of(
        &self,
        range: PfnRange,
    ) -> impl DoubleEndedIterator<Item = (usize, usize, u64)> + use<'_, P> {
        // Nearly always within one region, which then need not be looked for again and again.
        let within = self.find(range.start()).map(|(slot, _)| (slot, &self.slots()[slot]));
        let within = within.filter(|(_, region)| region.range().is_some_and(|r| r.covers(range)));
        range.sections().filter_map(move |piece| match within {
            Some((slot, region)) => {
                let (index, blocks) = word_at(region.offset_of(piece.start())?, piece);
                Some((slot, index, blocks))
            }
            None => self.word_of(piece),
        })
    }

    /// Holds `range`, which is not online and not held, for an addition or a removal.
    pub(crate) fn hold(&self, range: PfnRange) {
        for (slot, index, blocks) in self.words_of(range) {
            if let Some(section) = self.section(slot, index) {
                section.isolated.fetch_or(blocks, Ordering::AcqRel);
            }
        }
    }

    /// Whoever held `range` is done with it.
    pub(crate) fn let_go(&self, range: PfnRange) {
        for (slot, index, blocks) in self.words_of(range) {
            if let Some(section) = self.section(slot, index) {
                section.isolated.fetch_and(!blocks, Ordering::AcqRel);
            }
        }
    }

    /// The part of a section as a word: region slot, section, pageblocks.
    #[inline]
    pub(crate) fn word_of(&self, piece: PfnRange) -> Option<(usize, usize, u64)> {
        let (slot, offset) = self.find(piece.start())?;
        if !self.slots().get(slot)?.range()?.covers(piece) {
            return None;
        }
        let (index, blocks) = word_at(offset, piece);
        Some((slot, index, blocks))
    }

    pub(crate) fn section(&self, slot: usize, index: usize) -> Option<&Section> {
        self.slots().get(slot)?.section(index)
    }

    /// The frames of the lowest pageblock in `blocks`.
    pub(crate) fn first_block(&self, slot: usize, index: usize, blocks: u64) -> PfnRange {
        self.block(slot, index, blocks.trailing_zeros() as usize)
            .and_then(|block| PfnRange::with_len(block.start(), PAGEBLOCK_FRAMES as u64))
            .unwrap_or(PfnRange::EMPTY)
    }

    /// What keeps the isolated pageblocks `live` of a section from being drained, highest
    /// pageblock first, the section's own lines last.
    fn what_holds(&self, slot: usize, index: usize, live: u64) -> Option<InUse> {
        let lines = self.frame_of_lines(slot, index);
        let mut own_lines = None;
        for bit in (0..SECTION_PAGEBLOCKS).rev().filter(|bit| live >> bit & 1 != 0) {
            let block = self.block(slot, index, bit)?;
            let counter = block.counter.load();
            if counter & LIVE == 0 {
                continue;
            }
            if let Some(used) = self.first_used(&block, lines) {
                return Some(self.whose(&block, used));
            }
            // Lines and poison are all that is left, if the count says that nobody is inside.
            let drained = self.drained_count(&block, lines);
            if lines.is_some_and(|frame| block.range().contains(frame)) {
                if count(counter) != drained {
                    return Some(InUse::InFlight(block.range()));
                }
                own_lines = lines.and_then(|frame| PfnRange::with_len(frame, 1));
            } else if !block.counter.own_drained(drained) {
                return Some(InUse::InFlight(block.range()));
            }
        }
        own_lines.map(InUse::Metadata)
    }

    /// Drops the lines of a section of which `held` is isolated, if that is all that is online of
    /// it and nothing else of it is in use. The caller keeps the rest from coming online.
    fn drop_lines(&self, slot: usize, index: usize, held: u64, live: u64) -> Option<()> {
        let section = self.section(slot, index)?;
        let frame = PfnRange::with_len(self.frame_of_lines(slot, index)?, 1)?;
        if section.online.load(Ordering::Acquire) != held {
            return None;
        }
        match self.what_holds(slot, index, live) {
            None => {
                section.lines.store(core::ptr::null_mut(), Ordering::Release);
                // It lies in boot memory and was allocated for this, so this cannot fail.
                self.free(frame).ok()
            }
            Some(InUse::Metadata(own)) if own == frame => {
                let block = self.block_of(frame.start())?;
                let drained = self.drained_count(&block, Some(frame.start()));
                if !block.counter.own_drained(drained) {
                    return None;
                }
                section.lines.store(core::ptr::null_mut(), Ordering::Release);
                Some(())
            }
            Some(_) => None,
        }
    }

    /// The count of a live pageblock when nothing of it is in use but the section's own lines, if
    /// it has them, and what is poisoned.
    fn drained_count(&self, block: &Block<'_>, lines: Option<Pfn>) -> u16 {
        let own = lines.filter(|&frame| block.range().contains(frame));
        let never_free = self.out_in(block.range()).chain(own).count();
        u16::try_from(never_free).map_or(0, |never_free| ALL.saturating_sub(never_free))
    }

    /// The first run of frames in use in a live pageblock, the section's own lines aside.
    pub(crate) fn used_in(&self, block: &Block<'_>) -> Option<PfnRange> {
        let (slot, _) = self.find(block.start())?;
        self.first_used(block, self.frame_of_lines(slot, block.index))
    }

    /// The first run of frames in use in a pageblock, the section's own lines and what is out for
    /// poison aside.
    fn first_used(&self, block: &Block<'_>, lines: Option<Pfn>) -> Option<PfnRange> {
        let own = lines.filter(|&frame| block.range().contains(frame));
        let own = own.map(|frame| block.offset_of(frame));
        let is_marked = block.counter.load() & POISON != 0;
        let is_out =
            |at| is_marked && self.out_in(block.range()).any(|frame| block.offset_of(frame) == at);
        // Without lines all of it was handed out.
        let line = block.line();
        let used = |at: usize| {
            let word = line.map_or(0, |l| l.words()[at / LINE_WORD_BITS].load(Ordering::Acquire));
            word >> (at % LINE_WORD_BITS) & 1 == 0 && own != Some(at) && !is_out(at)
        };
        let first = (0..PAGEBLOCK_FRAMES).find(|&at| used(at))?;
        let end = (first..PAGEBLOCK_FRAMES).find(|&at| !used(at)).unwrap_or(PAGEBLOCK_FRAMES);
        PfnRange::with_len(block.start().checked_add(first as u64)?, (end - first) as u64)
    }

    /// Used frames of a pageblock, up to where their owner, the kernel or the engine, changes.
    fn whose(&self, block: &Block<'_>, used: PfnRange) -> InUse {
        // Lines of other sections lie in boot memory only, which hardly ever goes, so that most
        // of the time this looks at nothing but the regions' words.
        let lines = block.region.is_fixed();
        let engine = self.metadata_where(lines).map(|metadata| metadata.frames.intersection(used));
        match engine.filter(|frames| !frames.is_empty()).min_by_key(|frames| frames.start()) {
            None => InUse::Frames(used),
            Some(frames) if frames.start() == used.start() => InUse::Metadata(frames),
            Some(frames) => InUse::Frames(used.split_at(frames.start()).0),
        }
    }
}

/// The part of a section that lies `offset` frames above its region's base: section, pageblocks.
#[inline]
fn word_at(offset: usize, piece: PfnRange) -> (usize, u64) {
    let first = offset % SECTION_FRAMES;
    // At most a section.
    let end = first + usize::try_from(piece.frames()).unwrap_or(SECTION_FRAMES);
    let blocks = mask(end.div_ceil(PAGEBLOCK_FRAMES)) & !mask(first / PAGEBLOCK_FRAMES);
    (offset / SECTION_FRAMES, blocks)
}

/// Captures a pageblock that was not free when it was looked at.
fn capture_block(block: &Block<'_>) -> Capture {
    for _ in 0..LOOKS {
        match block.counter.isolate() {
            Capture::InFlight => {}
            captured => return captured,
        }
        if block.section.isolated.load(Ordering::Acquire) & block.mask() != 0 {
            return Capture::HeldByAnother;
        }
        if block.section.claim_all(block.mask()) {
            return Capture::Owned;
        }
        spin_hint();
    }
    Capture::InFlight
}

impl<'f, P: Platform> Isolation<'f, P> {
    /// What is isolated.
    #[must_use]
    pub fn range(&self) -> PfnRange {
        self.range
    }

    /// `None` once nothing of it is in use any more, or what is, from the top down.
    ///
    /// Cost: O(pageblocks), or as far down as the first that is in use; O(1) if all of it was free
    /// when it was isolated.
    #[must_use]
    pub fn in_use(&self) -> Option<InUse> {
        if self.was_free {
            return None;
        }
        let mut words = self.words().rev();
        words.find_map(|(slot, index, held)| self.frames.what_holds(slot, index, held))
    }

    /// Drops the lines that nobody needs if this memory goes. For the slow side, which brings
    /// nothing else of these sections online meanwhile.
    pub(crate) fn drop_lines(&self) {
        for (slot, index, held) in self.words() {
            self.frames.drop_lines(slot, index, held, self.live(held));
        }
    }

    /// Those of `held` that may be in use.
    fn live(&self, held: u64) -> u64 {
        if self.was_free { 0 } else { held }
    }

    /// Exit: back to the allocator, what is in use as well as what is free.
    pub fn release(self) {
        for (slot, index, held) in self.words() {
            self.frames.release_in(slot, index, held);
        }
    }

    /// Exit: the host has taken the memory; it is free again and marked so, to be used last.
    ///
    /// # Errors
    /// The token and what is in use, if anything is.
    pub fn mark_reported(self) -> Result<(), (Isolation<'f, P>, InUse)> {
        if let Some(in_use) = self.in_use() {
            return Err((self, in_use));
        }
        for (slot, index, held) in self.words() {
            if let Some(section) = self.frames.section(slot, index) {
                // Before the publish in the release, which makes it visible.
                section.reported.fetch_or(held, Ordering::Relaxed);
            }
            self.frames.release_in(slot, index, held);
        }
        Ok(())
    }

    /// Exit: out of the allocator. The memory is present and offline, its zone remembered, and held
    /// until [`Frames::let_go`]. For the slow side: see [`drop_lines`](Self::drop_lines).
    ///
    /// # Errors
    /// The token and what is in use, if anything is.
    pub(crate) fn leave(self) -> Result<PfnRange, (Isolation<'f, P>, InUse)> {
        self.drop_lines();
        if let Some(in_use) = self.in_use() {
            return Err((self, in_use));
        }
        for (slot, index, held) in self.words() {
            let Some(section) = self.frames.section(slot, index) else { continue };
            // Nobody else can change these bits of a pageblock that the token owns. Release: who
            // finds it offline comes after all that was done to it.
            section.partial.fetch_and(!held, Ordering::AcqRel);
            section.online.fetch_and(!held, Ordering::AcqRel);
        }
        let mut words = self.words().map(|(slot, index, _)| (slot, index)).peekable();
        while let Some((slot, first)) = words.next() {
            let mut end = first + 1;
            while words.next_if(|&(s, _)| s == slot).is_some() {
                end += 1;
            }
            self.frames.forget_hints(slot, first..end);
        }
        Ok(self.range)
    }

    /// A token that was drawn over a larger range gives its lower part up as a token of its own.
    pub fn split_at(self, pfn: Pfn) -> (Isolation<'f, P>, Isolation<'f, P>) {
        let at = pfn.align_down(PAGEBLOCK_FRAMES as u64);
        let (low, high) = self.range.split_at(at);
        let frames = self.frames;
        let part = |range| Isolation { frames, range, was_free: self.was_free };
        (part(low), part(high))
    }

    /// The token over this range and the one right above it as one.
    pub(crate) fn join(self, above: Isolation<'f, P>) -> Isolation<'f, P> {
        debug_assert_eq!(self.range.end(), above.range.start());
        let range = PfnRange::new(self.range.start(), above.range.end()).unwrap_or(self.range);
        Isolation { frames: self.frames, range, was_free: self.was_free && above.was_free }
    }

    /// Frames of it that are still in use.
    pub(crate) fn frames_in_use(&self) -> u64 {
        let used = |slot, index, bit| {
            let Some(block) = self.frames.block(slot, index, bit) else { return 0 };
            match block.counter.load() {
                counter if counter & LIVE == 0 => 0,
                counter => {
                    let drained = self.frames.drained_count(&block, None);
                    u64::from(drained.saturating_sub(count(counter)))
                }
            }
        };
        let in_use = self.words().map(|(slot, index, held)| {
            bits_of(held).map(|bit| used(slot, index, bit)).sum::<u64>()
        });
        in_use.sum()
    }

    fn words(&self) -> impl DoubleEndedIterator<Item = (usize, usize, u64)> {
        self.frames.words_of(self.range)
    }
}

impl<P> fmt::Debug for Isolation<'_, P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Isolation").field(&self.range).finish()
    }
}

impl fmt::Display for IsolateError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            IsolateError::Unaligned(range) => write!(f, "{range} is not whole pageblocks"),
            IsolateError::NotOnline(range) => write!(f, "{range} is not online"),
            IsolateError::HeldByAnother(range) => write!(f, "{range} is isolated already"),
            IsolateError::Reporting(range) => write!(f, "{range} is out for reporting"),
            IsolateError::Busy(range) => write!(f, "{range} is changing hands, try again"),
        }
    }
}

impl core::error::Error for IsolateError {}

const _: () = assert!(ISOLATED & LIVE == 0 && mask(SECTION_PAGEBLOCKS) != 0);
