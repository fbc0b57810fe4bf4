//! A mixed load: objects, pages and buffers that are allocated and freed in random order, a few of
//! which stay in use.

use super::piece::Piece;
use alloc::vec::Vec;
use axalloc::FRAMES;
use core::mem;

/// The words that are in use at once are this part of the free memory.
const PART: usize = 2;
/// How often, on average, each piece is replaced by another one.
const ROUNDS: usize = 3;
/// So many pieces stay in use, for each hundred that are in use at once.
const PERCENT_KEPT: usize = 1;

/// Runs the load. Adds the pieces that stay in use to `kept`, and returns the number of words that
/// were in use at once.
pub fn run(kept: &mut Vec<Piece>) -> usize {
    let most = ((FRAMES.counts().free << 12) as usize) / PART / size_of::<usize>();
    let mut random = Random(1);
    let mut pieces = Vec::new();
    let mut used = 0;
    while used < most
        && let Some(piece) = Piece::new(random.len())
    {
        used += piece.len();
        pieces.push(piece);
    }
    for _ in 0..ROUNDS * pieces.len() {
        let number = random.below(pieces.len());
        let place = &mut pieces[number];
        place.check();
        // The old piece is freed, or kept, after the new one was allocated.
        let Some(new) = Piece::new(place.len()) else { continue };
        let old = mem::replace(place, new);
        if random.below(100 * ROUNDS) < PERCENT_KEPT {
            kept.push(old);
        }
    }
    used
}

/// The linear congruential generator of Numerical Recipes, of which the upper bits are used.
struct Random(u64);

impl Random {
    fn below(&mut self, end: usize) -> usize {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % end
    }

    /// Returns the length of a piece in words: most are objects of up to 1 KiB, some are pages of
    /// up to 64 KiB, and a few are buffers of up to 4 MiB.
    fn len(&mut self) -> usize {
        let (least, most) = match self.below(100) {
            0 => (8 << 10, 512 << 10),
            1..10 => (512, 8 << 10),
            _ => (2, 128),
        };
        least + self.below(most - least)
    }
}
