//! Sets, clears and finds the bits of one level of a tree. `paths.rs` states when a bit may be
//! cleared and when it must be set.

use super::pieces::PART_WORDS;
use crate::geometry::mask;
use crate::invariant::OrRecordViolation;
use crate::sync::{AtomicU64, Ordering, fence, mutant};
use crate::words::ReadCount;

/// Makes sure that a bit is set. Returns whether it was clear.
pub(super) fn set_bit(words: &[AtomicU64], bit: usize) -> bool {
    let Some(word) = words.get(bit / 64).or_record_violation() else { return false };
    let mask = 1 << (bit % 64);
    let is_clear = word.load(Ordering::Relaxed) & mask == 0;
    if is_clear {
        // Release pairs with the Acquire loads of the search.
        word.fetch_or(mask, Ordering::Release);
        fence(Ordering::SeqCst); // orders this bit before the load of the bit one level up
    }
    is_clear
}

/// Clears a bit, if it is set, and then calls `look_again`, which may set it again.
pub(super) fn clear_bit(words: &[AtomicU64], bit: usize, look_again: impl FnOnce()) {
    let Some(word) = words.get(bit / 64).or_record_violation() else { return };
    let mask = 1 << (bit % 64);
    if word.load(Ordering::Relaxed) & mask == 0 {
        return;
    }
    word.fetch_and(!mask, Ordering::AcqRel);
    fence(Ordering::SeqCst); // pairs with the fence in `Directory::set_path`
    mutant!("no second look after a bit was cleared" => return);
    look_again();
}

/// Returns whether no bit is set.
pub(super) fn is_zero(words: &[AtomicU64]) -> bool {
    words.iter().all(|word| word.load(Ordering::Acquire) == 0)
}

/// Returns the first set bit at or above `from`.
pub(super) fn first_set(
    words: &[AtomicU64],
    from: usize,
    words_read: &mut ReadCount,
) -> Option<usize> {
    let mut search_mask = !mask(from % 64);
    for (i, word) in words.iter().enumerate().skip(from / 64) {
        words_read.add(1);
        // Acquire pairs with the Release in `set_bit`.
        let set_bits = word.load(Ordering::Acquire) & search_mask;
        if set_bits != 0 {
            return Some(i * 64 + set_bits.trailing_zeros() as usize);
        }
        search_mask = u64::MAX;
    }
    None
}

/// Returns the last set bit below `end`. Reads all of the few words, so that the cost of a search
/// does not depend on how far away the bit is.
pub(super) fn last_of_all(
    words: &[AtomicU64; PART_WORDS],
    end: usize,
    words_read: &mut ReadCount,
) -> Option<usize> {
    let mut last = None;
    for (i, word) in words.iter().enumerate() {
        let set_bits = word.load(Ordering::Acquire) & mask(end.saturating_sub(i * 64).min(64));
        if set_bits != 0 {
            last = Some((i, set_bits));
        }
    }
    words_read.add(PART_WORDS as u64);
    last.map(|(i, set_bits)| i * 64 + 63 - set_bits.leading_zeros() as usize)
}

/// Returns the last set bit below `end`.
pub(super) fn last_set(
    words: &[AtomicU64],
    end: usize,
    words_read: &mut ReadCount,
) -> Option<usize> {
    let last = end.checked_sub(1)?;
    let mut search_mask = mask(last % 64 + 1);
    for (i, word) in words.iter().enumerate().take(last / 64 + 1).rev() {
        words_read.add(1);
        let set_bits = word.load(Ordering::Acquire) & search_mask;
        if let Some(bit) = set_bits.checked_ilog2() {
            return Some(i * 64 + bit as usize);
        }
        search_mask = u64::MAX;
    }
    None
}
