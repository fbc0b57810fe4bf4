//! Shows that the kernel goes on.

use crate::events;
use alloc::vec::Vec;
use axhal::time::monotonic_time;

/// What is allocated: 16 MiB, in words.
const WORDS: usize = 2 << 20;

/// Allocates memory, writes it, checks it, frees it, and says how much that was.
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
