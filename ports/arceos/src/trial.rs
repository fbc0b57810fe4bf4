//! Shows that the kernel still allocates and frees memory.

use crate::events;
use alloc::vec::Vec;
use axhal::time::monotonic_time;

/// The number of words that are allocated, which take 16 MiB.
const WORDS: usize = 2 << 20;

/// Allocates memory, writes, checks and frees it, and reports its size.
pub fn run() {
    let began = monotonic_time();
    let mut words = Vec::new();
    if words.try_reserve_exact(WORDS).is_ok() {
        words.extend(0..WORDS);
    }
    assert!(words.iter().zip(0..).all(|(&word, number)| word == number), "wrong contents");
    let bytes = words.len() * size_of::<usize>();
    drop(words);
    events::freed(bytes, began);
}
