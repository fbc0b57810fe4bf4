//! Uses all free memory, and checks that it keeps its contents.

use alloc::vec::Vec;
use core::iter::from_fn;

/// The words of 16 MiB.
const LEN: usize = 2 << 20;

/// Allocates all free memory in pieces of 16 MiB, writes each word, checks it, and frees the memory.
/// Returns the number of bytes.
pub fn run() -> usize {
    let pieces: Vec<Vec<usize>> = from_fn(|| {
        let mut words = Vec::<usize>::new();
        words.try_reserve_exact(LEN).ok()?;
        let first = words.as_ptr().addr();
        words.extend(first..first + LEN);
        Some(words)
    })
    .collect();
    for words in &pieces {
        let expected = words.as_ptr().addr()..;
        // A branch for each word would be slow under TCG.
        let wrong =
            words.iter().zip(expected).fold(0, |wrong, (&word, value)| wrong | (word ^ value));
        assert!(wrong == 0, "memory lost its contents");
    }
    pieces.len() * LEN * size_of::<usize>()
}
