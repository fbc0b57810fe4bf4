//! Implements the set of frames that the workload owns, with one bit for each frame.
//!
//! The set is a radix tree of three levels: a few roots, middle nodes and leaves. Its nodes are
//! frames that are allocated on demand. So the set needs no heap, and takes 0.003 % of the owned
//! memory.

use crate::frame_words::{FRAME_WORDS, FrameWords};
use crate::layout::MAX_DIRECT_MAP_BYTES;
use crate::to_usize;
use hotmem::geometry::FRAME_SIZE;
use hotmem::{Pfn, PfnRange};

/// The number of frames that a leaf covers: 128 MiB. A leaf has a bit for each frame. The words of
/// all other nodes are the frame numbers of their children, or 0 where there is no child.
const LEAF_FRAMES: u64 = FRAME_WORDS * 64;
const MIDDLE_FRAMES: u64 = FRAME_WORDS * LEAF_FRAMES;
const ROOT_FRAMES: u64 = FRAME_WORDS * MIDDLE_FRAMES;
const ROOTS: usize = to_usize((MAX_DIRECT_MAP_BYTES / FRAME_SIZE).div_ceil(ROOT_FRAMES));

/// A set of frames.
pub struct OwnedFrames {
    memory: FrameWords,
    roots: [u64; ROOTS],
    len: u64,
}

/// No frame was available for a node of the set, or the frames lie beyond the direct map. The set
/// is unchanged.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NotInserted;

impl OwnedFrames {
    /// Returns the empty set.
    ///
    /// # Safety
    /// Frames that [`OwnedFrames::insert`] gets for nodes are mapped in `memory`, and only this set
    /// uses them.
    #[must_use]
    pub unsafe fn new(memory: FrameWords) -> Self {
        OwnedFrames { memory, roots: [0; ROOTS], len: 0 }
    }

    /// Returns how many frames are in the set.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Returns whether no frame is in the set.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Adds frames. `table_frame` returns frames for nodes that are missing.
    ///
    /// # Errors
    /// [`NotInserted`] if `table_frame` returns `None`, or if the frames lie beyond the direct map.
    pub fn insert(
        &mut self,
        frames: PfnRange,
        mut table_frame: impl FnMut() -> Option<Pfn>,
    ) -> Result<(), NotInserted> {
        for part in frames.chunks(LEAF_FRAMES).filter(|part| !part.is_empty()) {
            self.make_leaf(part.start(), &mut table_frame).ok_or(NotInserted)?;
        }
        self.change(frames, |word, mask| word | mask);
        Ok(())
    }

    /// Removes those of `frames` that are in the set.
    pub fn remove(&mut self, frames: PfnRange) {
        self.change(frames, |word, mask| word & !mask);
    }

    /// Returns whether all of `frames` are in the set.
    #[must_use]
    pub fn holds(&self, frames: PfnRange) -> bool {
        frames.is_empty() || self.first_run(frames) == Some(frames)
    }

    /// Returns the first run of owned frames within `frames`.
    #[must_use]
    pub fn first_run(&self, frames: PfnRange) -> Option<PfnRange> {
        let start = self.first_selected(frames, |word| word)?;
        let (_, remaining) = frames.split_at(start);
        let end = self.first_selected(remaining, |word| !word).unwrap_or(remaining.end());
        PfnRange::new(start, end)
    }

    /// Returns the first frame in `frames` whose bit is set after `select` is applied to its word.
    fn first_selected(&self, frames: PfnRange, select: impl Fn(u64) -> u64) -> Option<Pfn> {
        frames.chunks(LEAF_FRAMES).find_map(|part| {
            let leaf = self.leaf(part.start());
            if leaf.is_none() && select(0) == 0 {
                return None;
            }
            part.chunks(64).find_map(|part| {
                // SAFETY: a leaf is a node, which is mapped and used by this set only; see `new`.
                // The index is below `FRAME_WORDS`.
                let word = leaf
                    .map_or(0, |leaf| unsafe { self.memory.read(leaf, word_index(part.start())) });
                let found = select(word) & mask_of(part);
                let bit = u64::from(found.trailing_zeros());
                (found != 0).then(|| part.start().align_down(64).checked_add(bit))?
            })
        })
    }

    fn change(&mut self, frames: PfnRange, change: impl Fn(u64, u64) -> u64) {
        for part in frames.chunks(LEAF_FRAMES) {
            let Some(leaf) = self.leaf(part.start()) else { continue };
            for part in part.chunks(64).filter(|part| !part.is_empty()) {
                let index = word_index(part.start());
                // SAFETY: a leaf is a node, which is mapped and used by this set only; see `new`.
                // The index is below `FRAME_WORDS`.
                unsafe {
                    let before = self.memory.read(leaf, index);
                    let after = change(before, mask_of(part));
                    self.memory.write(leaf, index, after);
                    self.len += u64::from(after.count_ones());
                    self.len -= u64::from(before.count_ones());
                }
            }
        }
    }

    fn leaf(&self, frame: Pfn) -> Option<Pfn> {
        let root = child(*self.roots.get(root_index(frame))?)?;
        // SAFETY: roots and middle nodes contain only frame numbers of nodes, see `new`.
        unsafe {
            let middle = child(self.memory.read(root, middle_index(frame)))?;
            child(self.memory.read(middle, leaf_index(frame)))
        }
    }

    fn make_leaf(
        &mut self,
        frame: Pfn,
        table_frame: &mut impl FnMut() -> Option<Pfn>,
    ) -> Option<()> {
        let memory = self.memory;
        let mut new_table = || {
            let table = table_frame()?;
            for index in 0..FRAME_WORDS {
                // SAFETY: the caller has provided the frame as a node; see `new`.
                unsafe { memory.write(table, index, 0) }
            }
            Some(table)
        };
        let root = self.roots.get_mut(root_index(frame))?;
        if *root == 0 {
            *root = new_table()?.number();
        }
        let mut table = child(*root)?;
        for index in [middle_index(frame), leaf_index(frame)] {
            // SAFETY: roots and middle nodes contain only frame numbers of nodes, see `new`.
            unsafe {
                if memory.read(table, index) == 0 {
                    memory.write(table, index, new_table()?.number());
                }
                table = child(memory.read(table, index))?;
            }
        }
        Some(())
    }
}

fn child(number: u64) -> Option<Pfn> {
    if number == 0 { None } else { Pfn::new(number) }
}

fn root_index(frame: Pfn) -> usize {
    to_usize(frame.number() / ROOT_FRAMES)
}

fn middle_index(frame: Pfn) -> u64 {
    frame.number() / MIDDLE_FRAMES % FRAME_WORDS
}

fn leaf_index(frame: Pfn) -> u64 {
    frame.number() / LEAF_FRAMES % FRAME_WORDS
}

fn word_index(frame: Pfn) -> u64 {
    frame.number() / 64 % FRAME_WORDS
}

/// Returns the bits for the frames of `part`, which lie within one word.
fn mask_of(part: PfnRange) -> u64 {
    let all = u64::MAX.checked_shr(u32::try_from(64 - part.frames().min(64)).unwrap_or(64));
    all.unwrap_or(0) << (part.start().number() % 64)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Frames from 1 up can be nodes. Frame 0 stays unused, because 0 means no child.
    struct Arena {
        frames: Vec<[u64; 512]>,
        next: u64,
    }

    impl Arena {
        fn new() -> (Arena, OwnedFrames) {
            let mut frames = vec![[u64::MAX; 512]; 16];
            let offset = frames.as_mut_ptr().expose_provenance();
            // SAFETY: the arena lives as long as the test, and only the set accesses it.
            let owned = unsafe { OwnedFrames::new(FrameWords::at_offset(offset)) };
            (Arena { frames, next: 1 }, owned)
        }

        fn frame(&mut self) -> Option<Pfn> {
            let frame = self.next;
            self.next += 1;
            (frame < self.frames.len() as u64).then(|| Pfn::new(frame).unwrap())
        }
    }

    fn range(start: u64, end: u64) -> PfnRange {
        PfnRange::new(Pfn::new(start).unwrap(), Pfn::new(end).unwrap()).unwrap()
    }

    #[test]
    fn the_set_agrees_with_a_naive_one() {
        let (mut arena, mut owned) = Arena::new();
        let base = ROOT_FRAMES - 300;
        let mut model = [false; 600];
        let mut state = 1u64;
        for _ in 0..2000 {
            state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
            let start = (state >> 33) % 600;
            let end = (start + (state >> 50) % 150).min(600);
            let frames = range(base + start, base + end);
            let insert = state >> 20 & 1 == 0;
            if insert {
                owned.insert(frames, || arena.frame()).unwrap();
            } else {
                owned.remove(frames);
            }
            model[to_usize(start)..to_usize(end)].fill(insert);
            assert_eq!(owned.len(), model.iter().filter(|&&set| set).count() as u64);

            let from = (state >> 40) % 600;
            let remaining = &model[to_usize(from)..];
            let expected = remaining.iter().position(|&set| set).map(|first| {
                let len = remaining[first..]
                    .iter()
                    .position(|&set| !set)
                    .unwrap_or(remaining.len() - first);
                range(base + from + first as u64, base + from + (first + len) as u64)
            });
            assert_eq!(owned.first_run(range(base + from, base + 600)), expected);
        }
        assert_eq!(arena.next, 7, "there are two roots, each with a middle node and a leaf");
    }

    #[test]
    fn holds_requires_the_whole_range() {
        let (mut arena, mut owned) = Arena::new();
        owned.insert(range(1000, 1512), || arena.frame()).unwrap();
        assert!(owned.holds(range(1000, 1512)));
        assert!(owned.holds(range(1100, 1101)));
        assert!(!owned.holds(range(999, 1512)));
        assert!(!owned.holds(range(1511, 1513)));
        owned.remove(range(1200, 1201));
        assert!(!owned.holds(range(1000, 1512)));
        owned.remove(range(0, 1 << 30));
        assert!(owned.is_empty());
    }

    #[test]
    fn without_frames_for_nodes_nothing_is_inserted() {
        let (mut arena, mut owned) = Arena::new();
        assert_eq!(owned.insert(range(10, 20), || None), Err(NotInserted));
        let mut frames = [arena.frame(), None].into_iter();
        assert_eq!(owned.insert(range(10, 20), || frames.next().flatten()), Err(NotInserted));
        assert!(owned.is_empty());
        assert_eq!(owned.first_run(range(0, 100)), None);
        let beyond = ROOTS as u64 * ROOT_FRAMES;
        assert_eq!(owned.insert(range(beyond, beyond + 1), || arena.frame()), Err(NotInserted));
    }
}
