//! All memory is used, and checked word by word.

use alloc::vec::Vec;
use axstd::println;

/// Words of a piece: 64 MiB.
const PIECE: usize = 8 << 20;

/// Memory that is in use, each word of it with its number.
pub struct Load(Vec<Vec<u64>>);

impl Load {
    /// Begins.
    pub fn start() -> Load {
        Load(Vec::new())
    }

    /// Takes all free memory, writes each word of it, and checks that each is as it was written.
    /// Frees it again, unless it is to be kept.
    pub fn use_memory(&mut self, keep: bool) {
        while let Some(piece) = piece(self.0.len()) {
            self.0.push(piece);
        }
        self.check();
        let bytes = self.0.len() * PIECE * size_of::<u64>();
        if !keep {
            self.0.clear();
        }
        println!(r#"{{"event":"verified","bytes":{bytes}}}"#);
    }

    /// Checks once more what is in use, and frees it. Returns whether there was anything.
    pub fn free(&mut self) -> bool {
        self.check();
        !core::mem::take(&mut self.0).is_empty()
    }

    /// Ends.
    pub fn end(self) {}

    fn check(&self) {
        for (piece, number) in self.0.iter().zip(0..) {
            let words = piece.iter().zip(number * PIECE as u64..);
            // Without a branch for each word, which takes TCG long.
            let wrong = words.fold(0, |wrong, (&word, number)| wrong | (word ^ number));
            assert!(wrong == 0, "memory lost its contents");
        }
    }
}

fn piece(number: usize) -> Option<Vec<u64>> {
    let mut piece = Vec::new();
    piece.try_reserve_exact(PIECE).ok()?;
    let words = &mut piece.spare_capacity_mut()[..PIECE];
    for (word, number) in words.iter_mut().zip((number * PIECE) as u64..) {
        word.write(number);
    }
    // SAFETY: so many words were written.
    unsafe { piece.set_len(PIECE) };
    Some(piece)
}
