//! An allocation that notices if it loses its contents.

use alloc::vec::Vec;

/// Memory in use, whose words each hold their own address.
pub struct Piece(Vec<usize>);

impl Piece {
    /// Allocates this many words, and writes them.
    pub fn new(len: usize) -> Option<Piece> {
        let mut piece = Vec::new();
        piece.try_reserve_exact(len).ok()?;
        let words = &mut piece.spare_capacity_mut()[..len];
        let addresses = (words.as_ptr().addr()..).step_by(size_of::<usize>());
        for (word, address) in words.iter_mut().zip(addresses) {
            word.write(address);
        }
        // SAFETY: `len` words were written.
        unsafe { piece.set_len(len) };
        Some(Piece(piece))
    }

    /// Returns the number of words.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Checks each word.
    pub fn check(&self) {
        let addresses = (self.0.as_ptr().addr()..).step_by(size_of::<usize>());
        // A branch for each word would be slow under TCG.
        let words = self.0.iter().zip(addresses);
        let wrong = words.fold(0, |wrong, (&word, address)| wrong | (word ^ address));
        assert!(wrong == 0, "memory lost its contents");
    }
}
