//! Makes objects of many sizes with known contents on the kernel's heap, and checks the contents.

use super::fatal::give_up;
use super::heap;
use super::progress::WATCHDOG;
use alloc::vec::Vec;
use hotmem_guest::cmdline::Options;
use hotmem_guest::pattern::mix_bits;
use hotmem_guest::to_usize;

/// The objects, oldest first.
pub(crate) struct Objects {
    objects: Vec<Vec<u64>>,
    /// The number of objects to make.
    target_count: usize,
    seed: u64,
    pins_one: bool,
}

/// The size of the largest object. The average is half of it.
const MAX_WORDS: u64 = 1024;
const MEAN_BYTES: u64 = MAX_WORDS / 2 * 8;

impl Objects {
    /// Makes an empty list of objects.
    pub(crate) fn new(options: &Options) -> Self {
        let target_count = to_usize(options.heap.0 / MEAN_BYTES);
        Objects { objects: Vec::new(), target_count, seed: options.seed, pins_one: options.pin }
    }

    /// Returns whether the run uses objects.
    pub(crate) fn are_wanted(&self) -> bool {
        self.target_count > 0
    }

    pub(crate) fn len(&self) -> u64 {
        self.objects.len() as u64
    }

    /// Makes the objects that are missing, as many as there is memory for. Pins the last object, if
    /// `hotmem.pin` is on and no pin was removed.
    pub(crate) fn make(&mut self) {
        // Reserve the whole list first, so that the list lies below all objects.
        if self.objects.try_reserve_exact(self.target_count - self.objects.len()).is_err() {
            return;
        }
        while self.objects.len() < self.target_count {
            let number = self.objects.len() as u64;
            let mut object = Vec::new();
            if object.try_reserve_exact(to_usize(self.words(number))).is_err() {
                break;
            }
            object.extend((0..self.words(number)).map(|index| self.word(number, index)));
            self.objects.push(object);
            WATCHDOG.progress();
        }
        self.pin_last(self.pins_one);
    }

    /// Checks the contents of every object.
    pub(crate) fn verify(&self) {
        for (number, object) in (0..).zip(&self.objects) {
            let expected = (0..self.words(number)).map(|index| self.word(number, index));
            if !object.iter().copied().eq(expected) {
                give_up(format_args!("object {number} on the heap has changed"));
            }
            WATCHDOG.progress();
        }
    }

    /// Unpins the pinned object, so that its memory can be removed. If no object is pinned, frees the
    /// younger half of the objects.
    pub(crate) fn release_objects(&mut self) {
        if core::mem::take(&mut self.pins_one) {
            self.pin_last(false);
        } else {
            self.objects.truncate(self.objects.len() / 2);
        }
    }

    fn pin_last(&self, pinned: bool) {
        if let Some(last) = self.objects.last() {
            heap::pin(last.as_ptr().cast(), pinned);
        }
    }

    fn words(&self, number: u64) -> u64 {
        1 + mix_bits(number ^ self.seed) % MAX_WORDS
    }

    fn word(&self, number: u64, index: u64) -> u64 {
        mix_bits(number << 32 ^ index ^ self.seed)
    }
}
