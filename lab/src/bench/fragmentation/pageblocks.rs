//! Counts the frames in use of each pageblock, in the same way for all allocators.

use hotmem::geometry::PAGEBLOCK_FRAMES;

const FRAMES: u64 = PAGEBLOCK_FRAMES as u64;

/// The number of frames in use in each pageblock of a machine.
pub(in crate::bench) struct Pageblocks {
    first_frame: u64,
    used_frames: Vec<u16>,
    /// The number of pageblocks that have no frame in use.
    whole_blocks: u64,
}

impl Pageblocks {
    /// Makes the pageblocks of `frames` frames from `first` on. No frame is in use.
    pub(in crate::bench) fn new(first: u64, frames: u64) -> Pageblocks {
        let whole_blocks = frames / FRAMES;
        Pageblocks { first_frame: first, used_frames: vec![0; index(frames)], whole_blocks }
    }

    /// Counts the `frames` frames from `frame` on, which lie in one pageblock, as in use.
    pub(in crate::bench) fn take(&mut self, frame: u64, frames: u64) {
        let used = &mut self.used_frames[index(frame - self.first_frame)];
        self.whole_blocks -= u64::from(*used == 0);
        *used += u16::try_from(frames).expect("at most a pageblock");
        assert!(u64::from(*used) <= FRAMES, "frame {frame} was allocated twice");
    }

    /// Counts such frames as free.
    pub(in crate::bench) fn free(&mut self, frame: u64, frames: u64) {
        let used = &mut self.used_frames[index(frame - self.first_frame)];
        *used -= u16::try_from(frames).expect("at most a pageblock");
        self.whole_blocks += u64::from(*used == 0);
    }

    /// Returns the number of pageblocks that have no frame in use.
    pub(in crate::bench) fn whole_blocks(&self) -> u64 {
        self.whole_blocks
    }
}

/// Returns the index of the pageblock that contains a frame. `frame` counts from the first frame.
fn index(frame: u64) -> usize {
    usize::try_from(frame / FRAMES).expect("the host has 64 bits")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pageblock_is_whole_when_its_last_frame_is_free() {
        let mut blocks = Pageblocks::new(4 * FRAMES, 3 * FRAMES);
        let taken = [(4 * FRAMES + 3, 1), (4 * FRAMES + 8, 8), (6 * FRAMES, 512)];
        taken.iter().for_each(|&(frame, frames)| blocks.take(frame, frames));
        assert_eq!(blocks.whole_blocks(), 1);
        let whole_blocks = taken.map(|(frame, frames)| {
            blocks.free(frame, frames);
            blocks.whole_blocks()
        });
        assert_eq!(whole_blocks, [1, 2, 3]);
    }

    #[test]
    #[should_panic(expected = "allocated twice")]
    fn allocating_a_frame_twice_panics() {
        let mut blocks = Pageblocks::new(0, FRAMES);
        blocks.take(0, 512);
        blocks.take(0, 1);
    }
}
