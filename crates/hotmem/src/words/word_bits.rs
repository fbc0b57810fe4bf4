//! Defines the bits of a word of a frame bitmap.
//!
//! A word has a bit for each of its frames, which is set while the frame is free. The other bits
//! are:
//!
//! | bits | meaning |
//! |---|---|
//! | `LENT` | the host was given some of the pageblock's frames |
//! | `HELD` | no frame may be taken: the pageblock is not live, or it is allocated as a whole, or a CPU holds all words of the bitmap to take the pageblock as a whole |
//! | `ISOLATED` | no frame may be taken: the pageblock is isolated |
//! | `POISON` | a free must check whether it frees a poisoned frame |
//! | `MOVABLE` | the zone of the frames, which is written when the word is opened |
//! | `MARK` | no frame of the word was freed since a call set this bit: either a search, when no two neighbouring frames of the word were free, or a division, when all frames of the pageblock were zero |
//! | the group number | the number of the word's group of pageblocks; it never changes |
//!
//! The bitmaps of a group of pageblocks lie in one frame of memory. In this directory, *flags* are
//! `HELD`, `ISOLATED` and `POISON`, and none of `LENT`, `MOVABLE` and `MARK`.
//!
//! `MARK` makes the next free of a frame of the word leave the fast path. That free clears the
//! bit, and lets searches for runs look at the pageblock again (see `frames/small/mod.rs`). Allocations
//! ignore the bit, because they cannot make a run, and leave it to tell who asks that the frames were
//! zero. The section's word `zero_words` says which of the two the marks of a pageblock mean (see
//! `frames/zeroed.rs`).

use super::Zone;
use crate::addr::Pfn;
use crate::geometry::{BITMAP_WORD_BITS, GROUP_FRAMES, PFN_LIMIT, mask};
use crate::sync::mutant;

/// The bits of a word whose frames are all free.
pub(super) const ALL_FREE: u64 = mask(BITMAP_WORD_BITS);
pub(super) const LENT: u64 = 1 << BITMAP_WORD_BITS;
pub(super) const HELD: u64 = LENT << 1;
pub(super) const ISOLATED: u64 = LENT << 2;
pub(super) const POISON: u64 = LENT << 3;
pub(super) const MOVABLE: u64 = LENT << 4;
pub(super) const MARK: u64 = LENT << 5;
/// The group number is in the bits from this one up.
pub(super) const GROUP_SHIFT: usize = BITMAP_WORD_BITS + 6;
pub(super) const GROUP: u64 = !mask(GROUP_SHIFT);

/// The flags that keep allocations from taking frames.
pub(super) const CLOSED: u64 = HELD | ISOLATED;
/// All flags: those of [`CLOSED`], and [`POISON`].
pub(super) const FLAGS: u64 = CLOSED | POISON;

/// The number of frames of a group: those that the bitmaps in one frame of memory describe. In a
/// model, bitmaps do not fill frames of memory, so each word is a group by itself.
pub(super) const WORD_GROUP_FRAMES: u64 =
    if cfg!(loom) { BITMAP_WORD_BITS } else { GROUP_FRAMES } as u64;
const _: () = assert!((PFN_LIMIT - 1) / WORD_GROUP_FRAMES <= GROUP >> GROUP_SHIFT);

/// Describes the freeing of frames of one word: the value of the word before it, and the bits of the
/// freed frames.
#[derive(Clone, Copy)]
pub(crate) struct FreedBits {
    before: u64,
    bits: u64,
}

impl FreedBits {
    /// Describes the freeing of `bits` in a word whose value is `before`. Returns `None` if one of
    /// these bits is set already.
    pub(super) fn new(before: u64, bits: u64) -> Option<FreedBits> {
        (before & bits == 0).then_some(FreedBits { before, bits })
    }

    /// Describes the last free in a word: the word has no flags, and only `bits` were allocated.
    pub(crate) fn last_in_word(bits: u64) -> FreedBits {
        FreedBits { before: ALL_FREE & !bits, bits }
    }

    /// Describes the freeing of `bits` in a word that has no flag and no free frame.
    pub(crate) fn into_exhausted(bits: u64) -> FreedBits {
        FreedBits { before: 0, bits }
    }

    /// Returns the value of the word before the free and after it.
    #[inline(always)]
    pub(super) fn change(self) -> (u64, u64) {
        (self.before, self.before | self.bits)
    }

    /// Returns whether the word belongs to the group of `frame`, and
    /// [was partial](Self::was_partial).
    pub(super) fn was_partial_in_group_of(self, frame: Pfn) -> bool {
        let group = (frame.number() / WORD_GROUP_FRAMES) << GROUP_SHIFT;
        mutant!("a fast free does not look for the mark of its word" => {
            return is_bits_of_frames((self.before ^ group) & (GROUP | FLAGS | ALL_FREE));
        });
        is_bits_of_frames((self.before ^ group) & (GROUP | FLAGS | MARK | ALL_FREE))
    }

    /// Returns whether the word belongs to the group of `frame`, and has neither a flag nor a mark, nor
    /// was a frame of its pageblock lent.
    #[inline(always)]
    pub(crate) fn is_of_open_word_in_group_of(self, frame: Pfn) -> bool {
        let group = (frame.number() / WORD_GROUP_FRAMES) << GROUP_SHIFT;
        mutant!("a free of a run does not look for the marks of its words" => {
            return (self.before ^ group) & !(ALL_FREE | MOVABLE | MARK) == 0;
        });
        (self.before ^ group) & !(ALL_FREE | MOVABLE) == 0
    }

    /// Returns whether the word has neither a flag nor a mark, nor was a frame of its pageblock lent.
    #[inline(always)]
    pub(super) fn is_of_open_word(self) -> bool {
        mutant!("a free of a run does not look for the marks of its words" => {
            return self.before & (FLAGS | LENT) == 0;
        });
        self.before & (FLAGS | LENT | MARK) == 0
    }

    /// Returns whether the word had neither flags nor a mark, and some of its frames were free before the
    /// free. Such a free has nothing to do but to set the bits, unless all frames of the word are free
    /// after it.
    pub(crate) fn was_partial(self) -> bool {
        mutant!("a fast free does not look for the mark of its word" => {
            return self.before & ALL_FREE != 0 && self.before & FLAGS == 0;
        });
        self.before & ALL_FREE != 0 && self.before & (FLAGS | MARK) == 0
    }

    /// Returns the bits of the frames that are freed.
    pub(crate) fn bits(self) -> u64 {
        self.bits
    }

    /// Returns whether no frame of the word was free before the free.
    pub(crate) fn was_exhausted(self) -> bool {
        self.before & ALL_FREE == 0
    }

    /// Returns whether the word had neither flags nor a mark, and no frame of the word was free before the
    /// free.
    pub(crate) fn was_exhausted_unflagged(self) -> bool {
        self.before & (ALL_FREE | FLAGS | MARK) == 0
    }

    /// Returns whether the free has cleared the mark.
    pub(crate) fn cleared_mark(self) -> bool {
        self.before & MARK != 0
    }

    /// Returns the zone of the frames.
    pub(crate) fn zone(self) -> Zone {
        if self.before & MOVABLE == 0 { Zone::Kernel } else { Zone::Movable }
    }

    /// Returns whether all frames of the word are free after the free, and the word has no flags.
    pub(crate) fn is_all_free_unflagged(self) -> bool {
        (self.before | self.bits) & (ALL_FREE | FLAGS) == ALL_FREE
    }

    /// Returns whether all frames of the word are free after the free. The word must have no flags.
    pub(crate) fn is_all_free(self) -> bool {
        (self.before | self.bits) & ALL_FREE == ALL_FREE
    }

    /// Returns whether the word is held.
    pub(crate) fn is_held(self) -> bool {
        self.before & HELD != 0
    }

    /// Returns whether the pageblock is isolated.
    pub(crate) fn is_isolated(self) -> bool {
        self.before & ISOLATED != 0
    }

    /// Returns whether frames of the pageblock are poisoned.
    pub(crate) fn has_poison(self) -> bool {
        mutant!("a free does not look for poison" => return false);
        self.before & POISON != 0
    }

    /// Returns whether the host was given some of the pageblock's frames.
    pub(crate) fn is_lent(self) -> bool {
        self.before & LENT != 0
    }
}

/// Returns the value of the bit `MOVABLE` for a zone.
pub(super) const fn zone_flag(zone: Zone) -> u64 {
    match zone {
        Zone::Kernel => 0,
        Zone::Movable => MOVABLE,
    }
}

/// Returns whether a word has free frames, and none of these flags.
pub(super) fn has_free_without(flags: u64, now: u64) -> bool {
    mutant!("an allocation does not look at the flags" => return now & ALL_FREE != 0);
    is_bits_of_frames(now & (flags | ALL_FREE))
}

/// Returns whether at least one bit of a frame is set, and no other bit. For speed, one
/// shift tests `1 <= bits <= LENT`. `LENT`, the bit above those of the frames, would pass alone, so
/// the caller must mask it out.
const fn is_bits_of_frames(bits: u64) -> bool {
    bits.wrapping_sub(1) >> BITMAP_WORD_BITS == 0
}

/// Returns whether a word has no flags, and has free frames of a zone.
#[inline]
pub(super) fn offers(now: u64, zone: Zone) -> bool {
    has_free_without(FLAGS | MOVABLE, now ^ zone_flag(zone))
}

/// Returns whether a word has no flags, and all frames of `bits` are free and of a zone.
#[inline(always)]
pub(super) fn offers_bits(now: u64, zone: Zone, bits: u64) -> bool {
    mutant!("an allocation of a long run does not look at the zone" => return now & (FLAGS | bits) == bits);
    (now ^ zone_flag(zone)) & (FLAGS | MOVABLE | bits) == bits
}

/// Returns the value of a word that has the same free frames, flags and zone as the word before it,
/// which has this value. In the same pageblock, it is the same value, except in a model, where each
/// word is a group by itself.
#[inline(always)]
pub(super) fn value_of_word_after(value: u64) -> u64 {
    if cfg!(loom) { value + (1 << GROUP_SHIFT) } else { value }
}

/// Returns whether a search may have passed a word with this value because nothing suitable is free
/// in it. If so, a free counts a hiding step before it sets a bit.
pub(super) fn may_have_been_passed(now: u64) -> bool {
    mutant!("a free into a word without runs counts no hiding step" => return now & ALL_FREE == 0);
    now & ALL_FREE == 0 || now & MARK != 0
}

/// Returns the lowest `n` set bits, or all of them if there are fewer.
pub(super) fn lowest_bits(word: u64, n: usize) -> u64 {
    let higher_bits = (0..n).fold(word, |higher_bits, _| higher_bits & higher_bits.wrapping_sub(1));
    word & !higher_bits
}
