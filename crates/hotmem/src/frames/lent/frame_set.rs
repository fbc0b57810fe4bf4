//! Implements a set of frames without a limit on its ranges: a tree of bitmaps, in frames that the
//! set allocates.
//!
//! A leaf is a bitmap of 32 Ki frames (128 MiB). A node above has 512 entries. The tree is as high as
//! the highest frame needs, and a node without a frame of the set is freed. So a set costs one frame
//! for each 128 MiB in which it has a frame, and a few for the nodes above.

use crate::addr::{Pfn, PfnRange};
use crate::frames::{AllocRequest, Frames};
use crate::geometry::{FRAME_SIZE, PFN_LIMIT};
use crate::invariant::OrRecordViolation;
use crate::platform::Platform;
use core::ops::Range;

/// A set of frames. It does not own its nodes by itself: the methods of one set take the same
/// [`Frames`] each time.
#[derive(Debug)]
pub(in crate::frames) struct FrameSet {
    root: Entry,
    /// The level of the root. Leaves have level 0.
    height: u32,
    frames: u64,
}

/// The end of a range at which a search begins, and so the run that it finds.
#[derive(Clone, Copy)]
pub(super) enum End {
    Lowest,
    Highest,
}

/// No memory is free for a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::frames) struct NoMemory;

/// Where a node lies, and how many bits (of a leaf) or entries (of a node above) it uses. 0 means that
/// there is no node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Entry(u64);

const WORD_FRAMES: u64 = u64::BITS as u64;
#[allow(clippy::cast_possible_truncation, reason = "512")]
const NODE_WORDS: usize = FRAME_SIZE as usize / size_of::<u64>();
/// The binary logarithms of the number of frames of a leaf, and of the number of entries of a node.
const LEAF_SHIFT: u32 = (NODE_WORDS as u64 * WORD_FRAMES).ilog2();
const NODE_SHIFT: u32 = NODE_WORDS.ilog2();

impl Entry {
    const NONE: Entry = Entry(0);
    const EXISTS: u64 = 1 << 63;
    const USED_BITS: u32 = LEAF_SHIFT + 1;

    fn new(node: Pfn, used: u64) -> Entry {
        Entry(Self::EXISTS | node.number() << Self::USED_BITS | used)
    }

    fn node(self) -> Option<Pfn> {
        let number = (self.0 & !Self::EXISTS) >> Self::USED_BITS;
        Pfn::new(number).filter(|_| self.0 & Self::EXISTS != 0)
    }

    fn used(self) -> u64 {
        self.0 & ((1 << Self::USED_BITS) - 1)
    }
}
const _: () = assert!(PFN_LIMIT << Entry::USED_BITS <= Entry::EXISTS);

impl FrameSet {
    pub(crate) const fn new() -> FrameSet {
        FrameSet { root: Entry::NONE, height: 0, frames: 0 }
    }

    /// Returns the number of frames in the set.
    pub(crate) fn frames(&self) -> u64 {
        self.frames
    }

    /// Adds `range`, no frame of which is in the set. If it fails, nothing has changed.
    ///
    /// Cost: O(words of the bitmaps that have a frame of `range`).
    pub(crate) fn insert<P: Platform>(
        &mut self,
        memory: &Frames<P>,
        range: PfnRange,
    ) -> Result<(), NoMemory> {
        self.grow(memory, range.end())?;
        let (root, is_inserted) = add(memory, self.root, self.height, numbers(range));
        self.root = root;
        if !is_inserted {
            self.root = remove(memory, root, self.height, numbers(range));
            return Err(NoMemory);
        }
        self.frames += range.frames();
        Ok(())
    }

    /// Removes `range`, all frames of which are in the set. Cost: as for [`insert`](Self::insert).
    pub(crate) fn remove<P: Platform>(&mut self, memory: &Frames<P>, range: PfnRange) {
        self.root = remove(memory, self.root, self.height, numbers(range));
        self.frames -= range.frames();
    }

    /// Counts the frames of `range` that are in the set. Cost: O(words of the bitmaps that `range`
    /// has).
    pub(super) fn frames_in<P: Platform>(&self, memory: &Frames<P>, range: PfnRange) -> u64 {
        count(memory, self.root, self.height, self.clip(range))
    }

    /// Returns the highest or the lowest run of frames in the set that lies within `range` and within
    /// one leaf.
    ///
    /// Cost: O(words between this end of `range` and the run), at most 512 for each level.
    pub(super) fn run_in<P: Platform>(
        &self,
        memory: &Frames<P>,
        range: PfnRange,
        end: End,
    ) -> Option<PfnRange> {
        let run = run_at(end, memory, self.root, self.height, self.clip(range))?;
        PfnRange::new(Pfn::new(run.start)?, Pfn::new(run.end)?)
    }

    /// Moves a node that lies in `range` to another frame, and frees its frame. Returns whether
    /// there was such a node. Cost: O(nodes).
    pub(super) fn move_node<P: Platform>(
        &mut self,
        memory: &Frames<P>,
        range: PfnRange,
    ) -> Result<bool, NoMemory> {
        match moved(memory, self.root, self.height, range)? {
            Some(root) => self.root = root,
            None => return Ok(false),
        }
        Ok(true)
    }

    /// Makes the tree so high that it covers the frames below `end`.
    fn grow<P: Platform>(&mut self, memory: &Frames<P>, end: Pfn) -> Result<(), NoMemory> {
        if self.root == Entry::NONE {
            self.height = 0;
        }
        while end.number() > covered_by(self.height) {
            if self.root != Entry::NONE {
                let node = new_node(memory).ok_or(NoMemory)?;
                write(memory, node, 0, self.root.0);
                self.root = Entry::new(node, 1);
            }
            self.height += 1;
        }
        Ok(())
    }

    /// Returns the part of `range` that the tree covers.
    fn clip(&self, range: PfnRange) -> Range<u64> {
        let end = covered_by(self.height);
        range.start().number().min(end)..range.end().number().min(end)
    }
}

fn numbers(range: PfnRange) -> Range<u64> {
    range.start().number()..range.end().number()
}

/// Returns the number of frames that a node of this level covers.
const fn covered_by(level: u32) -> u64 {
    1 << (LEAF_SHIFT + NODE_SHIFT * level)
}

/// Iterates over the entries of a node of this level that `range` lies in, each with its part of
/// `range`. Frames are numbered from the start of the node or of the entry.
fn parts(level: u32, range: Range<u64>) -> impl DoubleEndedIterator<Item = (usize, Range<u64>)> {
    let size = if level == 0 { WORD_FRAMES } else { covered_by(level - 1) };
    let entries =
        if range.is_empty() { 0..0 } else { range.start / size..range.end.div_ceil(size) };
    entries.map(move |index| {
        let start = index * size;
        let part = range.start.max(start) - start..range.end.min(start + size) - start;
        (usize::try_from(index).unwrap_or(usize::MAX), part)
    })
}

/// Returns the bits of a word of a leaf.
fn bits(part: Range<u64>) -> u64 {
    (u64::MAX >> (WORD_FRAMES - (part.end - part.start))) << part.start
}

/// Adds the frames of `range` to a node, which is made if it does not exist. Returns its entry, and
/// whether all frames were added; otherwise no memory was free for a node.
fn add<P: Platform>(
    memory: &Frames<P>,
    entry: Entry,
    level: u32,
    range: Range<u64>,
) -> (Entry, bool) {
    let Some(node) = entry.node().or_else(|| new_node(memory)) else { return (entry, false) };
    let (mut used, mut is_done) = (entry.used(), true);
    for (index, part) in parts(level, range) {
        let before = read(memory, node, index);
        let after = if level == 0 {
            let added = bits(part) & !before;
            used += u64::from(added.count_ones());
            before | added
        } else {
            let child;
            (child, is_done) = add(memory, Entry(before), level - 1, part);
            used += u64::from(before == 0 && child != Entry::NONE);
            child.0
        };
        write(memory, node, index, after);
        if !is_done {
            break;
        }
    }
    (Entry::new(node, used), is_done)
}

/// Removes those frames of `range` that a node has. Frees the node if it has no other frames, and
/// returns its entry.
fn remove<P: Platform>(memory: &Frames<P>, entry: Entry, level: u32, range: Range<u64>) -> Entry {
    let Some(node) = entry.node() else { return entry };
    let mut used = entry.used();
    for (index, part) in parts(level, range) {
        let before = read(memory, node, index);
        let after = if level == 0 {
            let removed = bits(part) & before;
            used -= u64::from(removed.count_ones());
            before & !removed
        } else {
            let child = remove(memory, Entry(before), level - 1, part);
            used -= u64::from(before != 0 && child == Entry::NONE);
            child.0
        };
        write(memory, node, index, after);
    }
    if used == 0 {
        free_node(memory, node);
        return Entry::NONE;
    }
    Entry::new(node, used)
}

fn count<P: Platform>(memory: &Frames<P>, entry: Entry, level: u32, range: Range<u64>) -> u64 {
    let Some(node) = entry.node() else { return 0 };
    let count_in = |(index, part): (usize, Range<u64>)| {
        let word = read(memory, node, index);
        match level {
            0 => u64::from((word & bits(part)).count_ones()),
            _ => count(memory, Entry(word), level - 1, part),
        }
    };
    parts(level, range).map(count_in).sum()
}

/// Returns the highest or the lowest run of a node.
fn run_at<P: Platform>(
    end: End,
    memory: &Frames<P>,
    entry: Entry,
    level: u32,
    range: Range<u64>,
) -> Option<Range<u64>> {
    let node = entry.node()?;
    let mut parts = parts(level, range);
    let mut words = core::iter::from_fn(|| {
        let (index, part) = match end {
            End::Lowest => parts.next(),
            End::Highest => parts.next_back(),
        }?;
        Some((index, part, read(memory, node, index)))
    });
    if level == 0 {
        let words = words.map(|(index, part, word)| (index as u64, word & bits(part)));
        return match end {
            End::Lowest => lowest_run(words),
            End::Highest => highest_run(words),
        };
    }
    words.find_map(|(index, part, word)| {
        let run = run_at(end, memory, Entry(word), level - 1, part)?;
        let start = index as u64 * covered_by(level - 1);
        Some(run.start + start..run.end + start)
    })
}

/// Returns the highest run of set bits of these words, each with its number. They descend without a
/// gap.
fn highest_run(words: impl Iterator<Item = (u64, u64)>) -> Option<Range<u64>> {
    let last_word = NODE_WORDS as u64 - 1;
    let mirrored = words.map(|(index, word)| (last_word - index, word.reverse_bits()));
    let run = lowest_run(mirrored)?;
    Some(covered_by(0) - run.end..covered_by(0) - run.start)
}

/// Returns the lowest run of set bits of these words, each with its number. They ascend without a
/// gap.
fn lowest_run(words: impl Iterator<Item = (u64, u64)>) -> Option<Range<u64>> {
    let mut run: Option<Range<u64>> = None;
    for (index, word) in words {
        let first = index * WORD_FRAMES;
        let start = match &run {
            Some(_) => 0,
            None if word == 0 => continue,
            None => u64::from(word.trailing_zeros()),
        };
        let end = start + u64::from((word >> start).trailing_ones());
        run = Some(run.map_or(first + start, |run| run.start)..first + end);
        if end < WORD_FRAMES {
            break;
        }
    }
    run
}

/// Moves a node that lies in `within`, this one or one below it. Returns the new entry, or `None` if no
/// node lies there.
fn moved<P: Platform>(
    memory: &Frames<P>,
    entry: Entry,
    level: u32,
    within: PfnRange,
) -> Result<Option<Entry>, NoMemory> {
    let Some(node) = entry.node() else { return Ok(None) };
    if within.contains(node) {
        let new = new_node(memory).ok_or(NoMemory)?;
        (0..NODE_WORDS).for_each(|index| write(memory, new, index, read(memory, node, index)));
        free_node(memory, node);
        return Ok(Some(Entry::new(new, entry.used())));
    }
    if level > 0 {
        for index in 0..NODE_WORDS {
            let child = Entry(read(memory, node, index));
            if let Some(child) = moved(memory, child, level - 1, within)? {
                write(memory, node, index, child.0);
                return Ok(Some(entry));
            }
        }
    }
    Ok(None)
}

/// Allocates an empty node. Boot memory is best, because it is never removed. Movable memory will do,
/// because a node can be moved.
fn new_node<P: Platform>(memory: &Frames<P>) -> Option<Pfn> {
    let request = AllocRequest::frames(1);
    let in_boot_memory = memory.alloc_range(request.in_boot_memory());
    let node = in_boot_memory.or_else(|_| memory.alloc_range(request.movable())).ok()?.start();
    (0..NODE_WORDS).for_each(|index| write(memory, node, index, 0));
    Some(node)
}

fn free_node<P: Platform>(memory: &Frames<P>, node: Pfn) {
    let range = PfnRange::with_len(node, 1).or_record_violation();
    // The set has allocated the frame, so freeing it cannot fail.
    range.and_then(|range| memory.call().fill_and_free(range).or_record_violation());
}

fn pointer<P: Platform>(memory: &Frames<P>, node: Pfn, index: usize) -> *mut u64 {
    memory.direct_map().pointer(node).cast::<u64>().wrapping_add(index % NODE_WORDS)
}

fn read<P: Platform>(memory: &Frames<P>, node: Pfn, index: usize) -> u64 {
    // SAFETY: an entry of the set names `node`, so the set has allocated it from `memory`, has
    // written all its words, and has not freed it: it is mapped, and only the set accesses it. The
    // word lies within the frame.
    unsafe { pointer(memory, node, index).read() }
}

fn write<P: Platform>(memory: &Frames<P>, node: Pfn, index: usize, word: u64) {
    // SAFETY: as for `read`; a node that is being made was just allocated.
    unsafe { pointer(memory, node, index).write(word) }
}
