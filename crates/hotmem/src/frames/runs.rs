//! Finds runs of set bits in a word.

use crate::geometry::{BITMAP_WORD_BITS, BITMAP_WORDS, mask};
use crate::words::FrameBitmap;

/// Returns the bits at which a run of at least `n` set bits starts. Each step doubles the length of
/// the runs that it has found, by a shift and an `and`.
#[inline]
pub(crate) fn runs_of(mut word: u64, n: usize) -> u64 {
    let mut len = 1;
    while len < n && word != 0 {
        let step = len.min(n - len);
        word &= word >> step;
        len += step;
    }
    word
}

/// Returns those bits of a word whose positions are multiples of `align`, a power of two. The first
/// bit of the word has the position `base`.
pub(super) fn aligned_starts(base: usize, align: usize) -> u64 {
    if align >= 64 {
        return u64::from(base.is_multiple_of(align));
    }
    // The pattern has every `align`-th bit set: it is the word of 64 ones, divided by the word of
    // `align` ones.
    let pattern = u64::MAX.checked_div(mask(align)).unwrap_or(0);
    // The small geometry has words of fewer bits, so `base` may not be a multiple of `align`.
    pattern << (base.wrapping_neg() & (align - 1))
}

/// Returns whether some frames of a bitmap may be taken, but no word has a run of this many frames;
/// for a run of several words, a word of such frames only. This is a snapshot.
pub(super) fn has_only_shorter_runs(bitmap: &FrameBitmap, frames: u64) -> bool {
    #[allow(clippy::cast_possible_truncation, reason = "at most the bits of a word")]
    let frames = frames.min(BITMAP_WORD_BITS as u64) as usize;
    let mut has_any = false;
    for word in 0..BITMAP_WORDS {
        let free = bitmap.takeable_in(word);
        if runs_of(free, frames) != 0 {
            return false;
        }
        has_any |= free != 0;
    }
    has_any
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_and_aligned_starts_agree_with_a_naive_search() {
        for word in [0, 1, u64::MAX, 0xf0f0, 0b1011_1011_1111, 0x8000_0000_0000_0001] {
            for n in 1..=64 {
                let naive = (0..64usize).filter(|&i| i + n <= 64 && word >> i & mask(n) == mask(n));
                assert_eq!(
                    runs_of(word, n),
                    naive.fold(0, |bits, i| bits | 1 << i),
                    "{word:x} {n}"
                );
            }
        }
        for align in (0..12).map(|order| 1usize << order) {
            for base in [0usize, 8, 64, 128, 192, 448] {
                let naive = (0..64).filter(|i| (base + i) % align == 0);
                let naive = naive.fold(0u64, |bits, i| bits | 1 << i);
                let word_bits = if align >= 64 { naive & 1 } else { naive };
                assert_eq!(aligned_starts(base, align), word_bits, "{base} {align}");
            }
        }
    }
}
