//! All memory is used, and checked word by word.

use alloc::vec::Vec;
use axstd::println;

/// Words of a piece: 64 MiB.
const PIECE: usize = 8 << 20;

/// Nothing between requests.
pub struct Load;

impl Load {
    /// Begins.
    pub fn start() -> Load {
        Load
    }

    /// Uses what has come.
    pub fn use_memory(&self) {
        println!(r#"{{"event":"verified","bytes":{}}}"#, use_all());
    }

    /// Ends.
    pub fn end(self) {}
}

/// Takes all free memory in pieces, writes each word of it, checks that each is as it was written,
/// and frees all of it. Returns how many bytes that was.
fn use_all() -> u64 {
    let mut pieces: Vec<Vec<u64>> = Vec::new();
    loop {
        let mut piece = Vec::new();
        if pieces.try_reserve(1).is_err() || piece.try_reserve_exact(PIECE).is_err() {
            break;
        }
        let first = (pieces.len() * PIECE) as u64;
        let words = &mut piece.spare_capacity_mut()[..PIECE];
        for (word, number) in words.iter_mut().zip(first..) {
            word.write(number);
        }
        // SAFETY: so many words were written.
        unsafe { piece.set_len(PIECE) };
        pieces.push(piece);
    }
    for (piece, number) in pieces.iter().zip(0..) {
        let words = piece.iter().zip(number * PIECE as u64..);
        // Without a branch for each word, which takes TCG long.
        let wrong = words.fold(0, |wrong, (&word, number)| wrong | (word ^ number));
        assert!(wrong == 0, "memory lost its contents");
    }
    (pieces.len() * PIECE * size_of::<u64>()) as u64
}
