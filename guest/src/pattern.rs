//! Writes and checks the pattern of a touched frame. The pattern differs from frame to frame, so a
//! check finds frames that were exchanged, overwritten or lost.
//!
//! Each cache line of the frame contains one word of the pattern. The word's value depends on the
//! frame's number, the run's seed and the line. The position of the word within the line differs
//! from frame to frame.

use crate::frame_words::{FRAME_WORDS, FrameWords};
use core::fmt;
use hotmem::Pfn;

/// The number of words in a cache line.
const LINE_WORDS: u64 = 8;

/// A word that differs from the pattern.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Mismatch {
    /// The frame.
    pub frame: Pfn,
    /// The word's offset in the frame, in bytes.
    pub offset: u64,
    /// The word of the pattern.
    pub written: u64,
    /// The word that was found.
    pub found: u64,
}

/// Fills the frame with its pattern.
///
/// # Safety
/// The frame is mapped, and the caller owns the frame.
pub unsafe fn write(memory: FrameWords, frame: Pfn, seed: u64) {
    for (index, word) in words(frame, seed) {
        // SAFETY: the caller owns the mapped frame, and `index` is below `FRAME_WORDS`.
        unsafe { memory.write(frame, index, word) }
    }
}

/// Checks that the frame still holds its pattern.
///
/// # Errors
/// The first [`Mismatch`].
///
/// # Safety
/// The frame is mapped, and the caller owns the frame.
pub unsafe fn check(memory: FrameWords, frame: Pfn, seed: u64) -> Result<(), Mismatch> {
    // SAFETY: the caller guarantees that the frame is mapped, and owns the frame.
    unsafe { check_copy(memory, frame, frame, seed) }
}

/// Checks that `frame` holds the pattern of the frame `original`.
///
/// # Errors
/// The first [`Mismatch`].
///
/// # Safety
/// `frame` is mapped, and the caller owns it.
pub unsafe fn check_copy(
    memory: FrameWords,
    frame: Pfn,
    original: Pfn,
    seed: u64,
) -> Result<(), Mismatch> {
    for (index, written) in words(original, seed) {
        // SAFETY: the caller owns the mapped frame, and `index` is below `FRAME_WORDS`.
        let found = unsafe { memory.read(frame, index) };
        if found != written {
            return Err(Mismatch { frame, offset: index * 8, written, found });
        }
    }
    Ok(())
}

/// Returns the indices and the values of the words of one frame.
fn words(frame: Pfn, seed: u64) -> impl Iterator<Item = (u64, u64)> {
    let first = mix_bits(frame.number() ^ mix_bits(seed));
    let position = first % LINE_WORDS;
    (0..FRAME_WORDS / LINE_WORDS).map(move |line| {
        (line * LINE_WORDS + position, first.wrapping_add(line.wrapping_mul(GOLDEN_GAMMA)))
    })
}

const GOLDEN_GAMMA: u64 = 0x9e37_79b9_7f4a_7c15;

/// Hashes a number by the finaliser of SplitMix64, which maps neighbouring numbers to very
/// different numbers.
#[must_use]
pub fn mix_bits(n: u64) -> u64 {
    let n = n.wrapping_add(GOLDEN_GAMMA);
    let n = (n ^ n >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let n = (n ^ n >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    n ^ n >> 31
}

impl fmt::Display for Mismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Mismatch { frame, offset, written, found } = self;
        write!(f, "frame {frame} holds {found:#018x} at {offset:#x}, not {written:#018x}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Arena(Vec<[u64; 512]>);

    impl Arena {
        fn memory(&mut self) -> FrameWords {
            FrameWords::at_offset(self.0.as_mut_ptr().expose_provenance())
        }
    }

    fn frame(number: u64) -> Pfn {
        Pfn::new(number).unwrap()
    }

    #[test]
    fn a_frame_holds_only_its_own_pattern() {
        let mut arena = Arena(vec![[0; 512]; 3]);
        let memory = arena.memory();
        // SAFETY: the arena has frames 0 to 2.
        unsafe {
            write(memory, frame(1), 7);
            assert_eq!(check(memory, frame(1), 7), Ok(()));
            assert!(check(memory, frame(1), 8).is_err());
            memory.pointer(frame(1)).copy_to(memory.pointer(frame(2)), 512);
            assert!(check(memory, frame(2), 7).is_err());
            assert_eq!(check_copy(memory, frame(2), frame(1), 7), Ok(()));
            assert_eq!(check(memory, frame(1), 7), Ok(()));
        }
        assert_eq!(arena.0[0], [0; 512]);
    }

    #[test]
    fn a_change_in_any_line_is_noticed() {
        for line in 0..64 {
            let mut arena = Arena(vec![[0; 512]; 2]);
            let memory = arena.memory();
            // SAFETY: the arena has frames 0 and 1.
            unsafe {
                write(memory, frame(1), 1);
                for index in line * 8..line * 8 + 8 {
                    memory.write(frame(1), index, !memory.read(frame(1), index));
                }
                let found = check(memory, frame(1), 1).unwrap_err();
                assert_eq!(found.offset / 64, line);
                assert_eq!(found.found, !found.written);
            }
        }
    }
}
