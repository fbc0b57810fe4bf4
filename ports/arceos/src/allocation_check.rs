//! Checks that the kernel still allocates and frees memory.

use crate::events;
use alloc::vec::Vec;
use axhal::time::monotonic_time;

/// The number of words to allocate, which take 16 MiB.
const WORDS: usize = 2 << 20;

/// Allocates memory, writes it, checks it and frees it. Reports the size of the memory, which is 0
/// if there was not enough memory.
pub fn run() {
    let start = monotonic_time();
    let mut words = Vec::new();
    if words.try_reserve_exact(WORDS).is_ok() {
        words.extend(0..WORDS);
    }
    let is_intact = words.iter().zip(0..).all(|(&word, number)| word == number);
    assert!(is_intact, "memory lost its contents");
    let bytes = words.len() * size_of::<usize>();
    drop(words);
    events::freed(bytes, start);
}
