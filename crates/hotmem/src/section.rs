//! The section word is the truth.
//!
//! A section is 128 MiB; each question about its 64 pageblocks is one 64-bit word. Clearing bits of
//! `free` by compare-exchange *is* the claim: the claimer owns those pageblocks, may write what it
//! likes, and publishes by setting bits. Beside the words, a 16-bit counter per pageblock says how
//! many frames of a *split* pageblock are free, and a line of frame bits says which.
//!
//! # The counter
//! | value | meaning |
//! |---|---|
//! | `0` | owned: its `free` bit is set, or a token or an operation in flight holds it, or it is absent |
//! | `SEEN` | the same, and the reporter has seen it free; whoever uses it next forgets that |
//! | `OUT` | the reporter holds it while the host works on it |
//! | `LIVE\|n` | split, or handed out whole (n = 0); n frames are claimable |
//! | `LIVE\|ISOLATED\|n` | the same under an isolation token: no credit is granted any more |
//! | with `POISON` | some of its frames are poisoned (see `frames/poison.rs`): it never becomes owned by a free |
//!
//! The invariant that carries everything: *count + credits of allocations in flight + bits of frees
//! in flight = free bits in the line*. So a count of all frames proves that nobody is inside.
//! Only the owner changes a counter without `LIVE`, by a plain store (the reporter's mark aside,
//! which any such store may lose); everybody else uses compare-exchange from a value with `LIVE`.

use crate::geometry::{LINE_WORD_BITS, LINE_WORDS, PAGEBLOCK_FRAMES, SECTION_PAGEBLOCKS, mask};
use crate::sync::{AtomicPtr, AtomicU16, AtomicU64, Ordering, mutant, spin_hint};

/// The words of one section: one cache line.
#[repr(C, align(64))]
pub(crate) struct Section {
    /// Added: the memory is there and mapped.
    pub(crate) present: AtomicU64,
    /// Handed to the allocator.
    pub(crate) online: AtomicU64,
    /// Online for movable allocations only. Changes only while the pageblock is offline.
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
    pub(crate) lines: AtomicPtr<LineFrame>,
}

/// One frame of memory that holds the lines of a section's pageblocks.
#[repr(C)]
pub(crate) struct LineFrame {
    lines: [Line; SECTION_PAGEBLOCKS],
}

/// Which frames of a pageblock are free: a set bit is a free frame. One cache line.
#[repr(C)]
pub(crate) struct Line {
    words: [AtomicU64; LINE_WORDS],
    /// Lets loom see that whoever writes a whole line is alone with it.
    #[cfg(loom)]
    alone: loom::cell::UnsafeCell<()>,
}

#[cfg(not(any(loom, hotmem_geometry = "small")))]
const _: () = {
    assert!(size_of::<Section>() == 64);
    assert!(size_of::<LineFrame>() as u64 == crate::geometry::FRAME_SIZE);
};
#[cfg(not(loom))]
const _: () = assert!(size_of::<LineFrame>() as u64 <= crate::geometry::FRAME_SIZE);

/// The counter is in use: the pageblock is split or handed out whole.
pub(crate) const LIVE: u16 = 1 << 15;
/// Flagged by an isolation token.
pub(crate) const ISOLATED: u16 = 1 << 14;
/// Of a counter without [`LIVE`]: the reporter has seen the pageblock free.
const SEEN: u16 = 1 << 12;
/// Of a counter without [`LIVE`]: the reporter has the pageblock, and the host may be working on it.
pub(crate) const OUT: u16 = 1 << 11;
/// Some of its frames are poisoned: whoever frees looks which.
pub(crate) const POISON: u16 = 1 << 13;
/// Every frame of a live pageblock is free.
#[allow(clippy::cast_possible_truncation, reason = "512 at the most")]
pub(crate) const ALL: u16 = PAGEBLOCK_FRAMES as u16;

/// The count in a counter, without its flags.
pub(crate) const fn count(counter: u16) -> u16 {
    counter & (OUT - 1)
}

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
            lines: AtomicPtr::new(core::ptr::null_mut()),
        }
    }

    /// Claims as many of `wanted` as are free, and says which.
    ///
    /// Acquire: pairs with [`publish`](Self::publish), so that the claimer sees everything that
    /// was done to the pageblocks while they were somebody else's.
    pub(crate) fn claim_any(&self, wanted: u64) -> u64 {
        let mut free = self.free.load(Ordering::Relaxed);
        loop {
            let got = free & wanted;
            if got == 0 {
                return 0;
            }
            match self.free.compare_exchange_weak(
                free,
                free & !got,
                Ordering::Acquire,
                Ordering::Relaxed,
            ) {
                Ok(_) => {
                    self.forget_reported(got);
                    return got;
                }
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
    /// beyond that: whoever publishes then asks whether there is a reporter (see `report/bell.rs`).
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
    /// publish (Release) makes it visible, so Relaxed is enough.
    fn forget_reported(&self, claimed: u64) {
        if self.reported.load(Ordering::Relaxed) & claimed != 0 {
            self.reported.fetch_and(!claimed, Ordering::Relaxed);
        }
    }

    /// The line of the pageblock at `bit`; `None` before the section has any.
    ///
    /// Acquire pairs with the Release that installed the frame of lines.
    #[inline]
    pub(crate) fn line(&self, bit: usize) -> Option<&Line> {
        let lines = self.lines.load(Ordering::Acquire);
        // SAFETY: a non-null pointer was installed by `Frames::install_lines` or boot from a frame
        // of mapped memory that is given back only when every pageblock of the section is offline
        // or isolated and drained, so while anybody can hold a credit or own a pageblock here.
        let frame = unsafe { lines.as_ref() }?;
        frame.lines.get(bit)
    }
}

impl LineFrame {
    /// The installer only: every frame of every pageblock is taken.
    pub(crate) fn clear(&self) {
        self.lines.iter().for_each(|line| line.write(0..PAGEBLOCK_FRAMES, None));
    }
}

#[cfg(loom)]
impl LineFrame {
    pub(crate) fn new() -> LineFrame {
        LineFrame {
            lines: core::array::from_fn(|_| Line {
                words: core::array::from_fn(|_| AtomicU64::new(0)),
                alone: loom::cell::UnsafeCell::new(()),
            }),
        }
    }

    /// What whoever holds the frame does with it: loom sees if anybody else has it as well.
    pub(crate) fn overwrite(&self) {
        for line in &self.lines {
            line.alone.with_mut(|_| ());
        }
    }
}

impl Line {
    /// The line's words, lowest frames first.
    #[inline]
    pub(crate) fn words(&self) -> &[AtomicU64; LINE_WORDS] {
        &self.words
    }

    /// Owner only: every frame free but those of `taken` and the one that was `lent` for lines
    /// (all relative to the pageblock).
    ///
    /// Relaxed: published by the Release store of the counter that follows.
    pub(crate) fn write(&self, taken: core::ops::Range<usize>, lent: Option<usize>) {
        #[cfg(loom)]
        self.alone.with_mut(|_| ());
        for (i, word) in self.words.iter().enumerate() {
            let of_word = |frames: core::ops::Range<usize>| {
                let low = frames.start.saturating_sub(i * LINE_WORD_BITS).min(LINE_WORD_BITS);
                let high = frames.end.saturating_sub(i * LINE_WORD_BITS).min(LINE_WORD_BITS);
                mask(high) & !mask(low)
            };
            let lent = lent.map_or(0, |frame| of_word(frame..frame + 1));
            let free = mask(LINE_WORD_BITS) & !of_word(taken.clone()) & !lent;
            word.store(free, Ordering::Relaxed);
        }
    }

    /// Takes `bits` of one word, if all are free. Acquire: pairs with [`give`](Self::give), so that
    /// the new holder of the frames comes after the old one.
    #[inline]
    pub(crate) fn take(&self, word: usize, bits: u64) -> bool {
        self.shared();
        let word = &self.words[word];
        let mut now = word.load(Ordering::Relaxed);
        while now & bits == bits {
            match word.compare_exchange_weak(now, now & !bits, Ordering::Acquire, Ordering::Relaxed)
            {
                Ok(_) => return true,
                Err(seen) => now = seen,
            }
        }
        false
    }

    /// Takes the first free frame. The caller holds a credit for it. Acquire: see
    /// [`take`](Self::take).
    #[inline]
    pub(crate) fn take_any(&self) -> usize {
        self.shared();
        // A credit promises a free bit, but others may take the one that was seen; each time that
        // happens somebody has got on, and the promise holds for what is left.
        loop {
            for (i, word) in self.words.iter().enumerate() {
                let mut now = word.load(Ordering::Relaxed);
                while now != 0 {
                    let rest = now & (now - 1);
                    match word.compare_exchange_weak(
                        now,
                        rest,
                        Ordering::Acquire,
                        Ordering::Relaxed,
                    ) {
                        Ok(_) => return i * LINE_WORD_BITS + now.trailing_zeros() as usize,
                        Err(seen) => now = seen,
                    }
                }
            }
            spin_hint();
        }
    }

    /// Gives `bits` of one word back, if none of them is free already. Release: pairs with
    /// [`take`](Self::take).
    #[inline]
    pub(crate) fn give(&self, word: usize, bits: u64) -> bool {
        self.shared();
        let word = &self.words[word];
        let mut now = word.load(Ordering::Relaxed);
        while now & bits == 0 {
            match word.compare_exchange_weak(now, now | bits, Ordering::Release, Ordering::Relaxed)
            {
                Ok(_) => return true,
                Err(seen) => now = seen,
            }
        }
        false
    }

    /// How many frames are free by the bits. Exact only while nothing is in flight.
    pub(crate) fn free_frames(&self) -> usize {
        self.words.iter().map(|w| w.load(Ordering::Relaxed).count_ones() as usize).sum()
    }

    #[inline]
    fn shared(&self) {
        #[cfg(loom)]
        self.alone.with(|_| ());
    }
}

/// A pageblock's counter; see the table at the top of this file.
#[repr(transparent)]
pub(crate) struct Counter(AtomicU16);

/// What a free did to its pageblock's counter.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Given {
    /// The pageblock is as findable as it was before.
    Some,
    /// The pageblock had no free frame before: it must be made findable.
    First,
    /// Every frame is free and the caller now owns the pageblock: it must publish it.
    Last,
    /// Every frame is free under an isolation token, which now owns the pageblock.
    Drained,
    /// Nothing has changed: some frames of the pageblock are poisoned, so it must be looked first
    /// whether they are among those that are given.
    Poisoned,
}

/// A free is about to make its pageblock change hands.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Edge {
    /// From no free frame to some.
    First,
    /// To all frames free.
    Last,
}

impl Counter {
    #[cfg(loom)]
    pub(crate) fn new() -> Counter {
        Counter(AtomicU16::new(0))
    }

    /// Acquire pairs with the Release of the last change: a drained counter shows all frees done.
    #[inline]
    pub(crate) fn load(&self) -> u16 {
        self.0.load(Ordering::Acquire)
    }

    /// The counter, by a read-modify-write: whoever changes it later sees all that the caller did
    /// before. AcqRel: Release pairs with the Acquire of that change.
    pub(crate) fn latest(&self) -> u16 {
        self.0.fetch_or(0, Ordering::AcqRel)
    }

    /// Owner only: the pageblock is live with `free` frames. Release publishes the line.
    pub(crate) fn set_live(&self, free: u16) {
        #[cfg(not(loom))]
        self.0.store(LIVE | free, Ordering::Release);
        // loom would let the mark of `see`, which came before, be found after a plain store.
        #[cfg(loom)]
        self.0.swap(LIVE | free, Ordering::Release);
    }

    /// A credit for `frames` frames: the right to take that many bits of the line.
    ///
    /// Acquire pairs with the Release of [`set_live`](Self::set_live) and of the frees that made
    /// the count.
    #[inline]
    pub(crate) fn credit(&self, frames: u16) -> bool {
        let mut now = self.0.load(Ordering::Relaxed);
        let flags = if mutant!("partial is the truth") { 0 } else { LIVE | ISOLATED };
        while now & flags == LIVE & flags && count(now) >= frames {
            match self.0.compare_exchange_weak(
                now,
                now - frames,
                Ordering::Acquire,
                Ordering::Relaxed,
            ) {
                Ok(_) => return true,
                Err(seen) => now = seen,
            }
        }
        false
    }

    /// [`give`](Self::give) where it changes nobody's view of the pageblock: it had free frames
    /// and will have some in use. If not, nothing has changed.
    #[inline]
    pub(crate) fn give_within(&self, frames: u16) -> bool {
        let mut now = self.0.load(Ordering::Relaxed);
        while now & (LIVE | POISON) == LIVE && count(now) != 0 && count(now) + frames < ALL {
            match self.0.compare_exchange_weak(
                now,
                now + frames,
                Ordering::AcqRel,
                Ordering::Relaxed,
            ) {
                Ok(_) => return true,
                Err(seen) => now = seen,
            }
        }
        false
    }

    /// Gives back `frames` frames whose bits are set already (or a credit that found no run).
    /// `honest`: none of them is poisoned, as far as anybody knew when their bits had been set.
    ///
    /// `at_edge` is asked just before the pageblock leaves a state in which it could not be found
    /// ([`Edge::First`]), or would leave the allocator's hands ([`Edge::Last`]; its answer says
    /// whether to keep it split instead).
    ///
    /// `None` if the pageblock is not live or the count would pass its size: somebody freed what
    /// was not theirs. AcqRel: Release pairs with the credit of the next allocation, Acquire makes
    /// the last free come after all others, so that its publish covers them.
    #[inline]
    pub(crate) fn give(
        &self,
        frames: u16,
        honest: bool,
        mut at_edge: impl FnMut(Edge) -> bool,
    ) -> Option<Given> {
        let mut now = self.0.load(Ordering::Relaxed);
        loop {
            if now & LIVE == 0 || frames > ALL - count(now) {
                return None;
            }
            if now & POISON != 0 && !honest && !mutant!("a free does not look for poison") {
                return Some(Given::Poisoned);
            }
            let (next, given) = if now & POISON == 0 && count(now) + frames == ALL {
                if now & ISOLATED != 0 && !mutant!("last free does not look at isolation") {
                    (0, Given::Drained)
                } else if at_edge(Edge::Last) || mutant!("the last free is like any other") {
                    (now + frames, if count(now) == 0 { Given::First } else { Given::Some })
                } else {
                    (0, Given::Last)
                }
            } else if count(now) == 0 && now & ISOLATED == 0 {
                at_edge(Edge::First);
                (now + frames, Given::First)
            } else {
                (now + frames, Given::Some)
            };
            match self.0.compare_exchange_weak(now, next, Ordering::AcqRel, Ordering::Relaxed) {
                Ok(_) => return Some(given),
                Err(seen) => now = seen,
            }
        }
    }

    /// From `LIVE|n` straight to owned: n = all frames when a split pageblock is taken whole,
    /// n = 0 when one that was handed out whole comes back whole. Says whether it was isolated.
    ///
    /// AcqRel for the same reasons as [`give`](Self::give).
    pub(crate) fn own_from(&self, n: u16) -> Option<bool> {
        let mut now = self.0.load(Ordering::Relaxed);
        while now & (LIVE | POISON) == LIVE && count(now) == n {
            match self.0.compare_exchange_weak(now, 0, Ordering::AcqRel, Ordering::Relaxed) {
                Ok(_) => return Some(now & ISOLATED != 0),
                Err(seen) => now = seen,
            }
        }
        None
    }

    /// From `LIVE|ISOLATED|n`, poisoned or not, straight to owned: the token's holder knows that
    /// the other frames never come back. AcqRel as in [`give`](Self::give).
    pub(crate) fn own_drained(&self, n: u16) -> bool {
        let mut now = self.0.load(Ordering::Relaxed);
        while now & (LIVE | ISOLATED) == LIVE | ISOLATED && count(now) == n {
            match self.0.compare_exchange_weak(now, 0, Ordering::AcqRel, Ordering::Relaxed) {
                Ok(_) => return true,
                Err(seen) => now = seen,
            }
        }
        false
    }

    /// Marks a live pageblock as having poisoned frames, so that whoever frees there from now on
    /// looks which. False if it is not live.
    ///
    /// AcqRel: Release shows which, Acquire shows the frees that did not look.
    pub(crate) fn poison(&self) -> bool {
        let mut now = self.0.load(Ordering::Relaxed);
        while now & LIVE != 0 {
            let marked = now | POISON;
            match self.0.compare_exchange_weak(now, marked, Ordering::AcqRel, Ordering::Relaxed) {
                Ok(_) => return true,
                Err(seen) => now = seen,
            }
        }
        false
    }

    /// Takes that mark away.
    pub(crate) fn heal(&self) {
        self.0.fetch_and(!POISON, Ordering::AcqRel);
    }

    /// A credit for one frame, for whoever takes it out for good: under isolation, too. Acquire as
    /// in [`credit`](Self::credit).
    pub(crate) fn credit_for_good(&self) -> bool {
        let mut now = self.0.load(Ordering::Relaxed);
        while now & LIVE != 0 && count(now) > 0 {
            match self.0.compare_exchange_weak(now, now - 1, Ordering::Acquire, Ordering::Relaxed) {
                Ok(_) => return true,
                Err(seen) => now = seen,
            }
        }
        false
    }

    /// Puts a live pageblock under isolation: no credit is granted after this.
    pub(crate) fn isolate(&self) -> Capture {
        let mut now = self.0.load(Ordering::Acquire);
        loop {
            let next = match now {
                _ if now & (LIVE | OUT) == OUT => return Capture::Reporting,
                _ if now & LIVE == 0 && !mutant!("isolation of any counter") => {
                    return Capture::InFlight;
                }
                _ if now & ISOLATED != 0 => return Capture::HeldByAnother,
                // Split but wholly free: taken straight from the counter.
                _ if now & POISON == 0 && count(now) == ALL => 0,
                _ => now | ISOLATED,
            };
            // AcqRel: Acquire as in `give`, Release so that a drained state is seen with the flag.
            match self.0.compare_exchange_weak(now, next, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) if next == 0 => return Capture::Owned,
                Ok(_) => return Capture::Flagged,
                Err(seen) => now = seen,
            }
        }
    }

    /// Takes the isolation flag away and returns the counter before. Acquire: whoever finds 0 owns
    /// the pageblock and must come after the free that drained it.
    pub(crate) fn release(&self) -> u16 {
        self.0.fetch_and(!ISOLATED, Ordering::AcqRel)
    }

    /// Marks a free pageblock as seen; says whether it was marked already, and so has been free
    /// since. Relaxed: a guess at what is worth reporting, nothing depends on it.
    pub(crate) fn see(&self) -> bool {
        match self.0.compare_exchange(0, SEEN, Ordering::Relaxed, Ordering::Relaxed) {
            Ok(_) => false,
            Err(now) => now == SEEN,
        }
    }

    /// Whether it is free and [`see`](Self::see) has marked it.
    pub(crate) fn was_seen(&self) -> bool {
        self.0.load(Ordering::Relaxed) == SEEN
    }

    /// Owner only: the host is going to work on the pageblock. Release: a reset comes after the
    /// claim.
    pub(crate) fn send_out(&self) {
        self.0.store(OUT, Ordering::Release);
    }

    /// The host is done with the pageblock. False if it was not out. AcqRel: as `send_out`, and
    /// whoever isolates it later comes after the host.
    pub(crate) fn take_back(&self) -> bool {
        self.0.compare_exchange(OUT, 0, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }
}

/// How an isolation token came by a pageblock.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Capture {
    /// It was wholly free and is now the token's.
    Owned,
    /// It is in use; no more is allocated from it.
    Flagged,
    /// Another token has it.
    HeldByAnother,
    /// The reporter has it, and the host is working on it.
    Reporting,
    /// Somebody is in the middle of taking or giving it: look again.
    InFlight,
}
