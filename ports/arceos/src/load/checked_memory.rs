//! An allocation that notices if it loses its contents.

use alloc::vec::Vec;

/// Memory in use, whose words each hold their own address.
pub struct CheckedMemory(Vec<usize>);

impl CheckedMemory {
    /// Allocates this many words, and writes them.
    pub fn new(len: usize) -> Option<CheckedMemory> {
        let mut words = Vec::new();
        words.try_reserve_exact(len).ok()?;
        let spare = &mut words.spare_capacity_mut()[..len];
        let addresses = (spare.as_ptr().addr()..).step_by(size_of::<usize>());
        for (word, address) in spare.iter_mut().zip(addresses) {
            word.write(address);
        }
        // SAFETY: `len` words were written.
        unsafe { words.set_len(len) };
        Some(CheckedMemory(words))
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
