//! Implements a load that uses all memory, and checks each word of it.

use alloc::vec::Vec;
use axstd::println;

/// The number of words of a piece, which has 64 MiB.
const PIECE_WORDS: usize = 8 << 20;

/// The memory in use. Each word holds its own number.
pub struct Load(Vec<Vec<u64>>);

impl Load {
    /// Returns a load that uses no memory yet.
    pub fn start() -> Load {
        Load(Vec::new())
    }

    /// Allocates all free memory, and writes and checks each word. Frees the memory unless `keep`
    /// is set.
    pub fn use_memory(&mut self, keep: bool) {
        while let Some(piece) = filled_piece(self.0.len()) {
            self.0.push(piece);
        }
        self.check();
        let bytes = self.0.len() * PIECE_WORDS * size_of::<u64>();
        if !keep {
            self.0.clear();
        }
        println!(r#"{{"event":"verified","bytes":{bytes}}}"#);
    }

    /// Checks the memory in use again and frees it. Returns whether there was any.
    pub fn free(&mut self) -> bool {
        self.check();
        !core::mem::take(&mut self.0).is_empty()
    }

    /// Ends the load.
    pub fn end(self) {}

    fn check(&self) {
        for (piece, number) in self.0.iter().zip(0..) {
            let words = piece.iter().zip(number * PIECE_WORDS as u64..);
            // Combine the words of a piece without branches, because a branch for each word is slow
            // under TCG.
            let wrong = words.fold(0, |wrong, (&word, number)| wrong | (word ^ number));
            assert!(wrong == 0, "memory lost its contents");
        }
    }
}

fn filled_piece(number: usize) -> Option<Vec<u64>> {
    let mut piece = Vec::new();
    piece.try_reserve_exact(PIECE_WORDS).ok()?;
    let words = &mut piece.spare_capacity_mut()[..PIECE_WORDS];
    for (word, number) in words.iter_mut().zip((number * PIECE_WORDS) as u64..) {
        word.write(number);
    }
    // SAFETY: the loop has written the first `PIECE_WORDS` words.
    unsafe { piece.set_len(PIECE_WORDS) };
    Some(piece)
}
