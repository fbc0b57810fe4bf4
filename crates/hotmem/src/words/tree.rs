//! One hierarchical bit tree over the section words, for everything that must be found.
//!
//! Level 0 has a bit per section, each level above a bit per word of the level below, up to a
//! single word. Finding the next section with something in it costs the
//! same at 1 GiB and at 64 TiB.
//!
//! The bits are **hints**: a set bit may lie; a clear bit lies only while an operation is in
//! flight. The rule that keeps this true:
//! - whoever makes a leaf nonzero passes a SeqCst fence and then makes sure that the bits above it
//!   are set, all the way up, by loads, with a read-modify-write only where one is clear;
//! - only a searcher who found a subtree empty clears its bit, and then passes a SeqCst fence,
//!   looks again, and sets the bit again (all the way up) if the subtree is not empty any more.
//!
//! Each fence pairs with the other: of a setter and a searcher that cross, at least one sees what
//! the other did.

use crate::geometry::TREE_FANOUT;
use crate::known::Known;
use crate::sync::{AtomicU64, Ordering, fence, mutant};

/// Most levels a tree can have: 2^25 sections of 128 MiB are 52 address bits.
const MAX_LEVELS: usize = if TREE_FANOUT == 64 { 5 } else { 26 };

/// The tree of one class of one region.
#[derive(Clone, Copy)]
pub(crate) struct Tree<'a> {
    words: &'a [AtomicU64],
    sections: usize,
}

/// Words that a tree over `sections` sections needs.
pub(crate) const fn words_needed(sections: usize) -> usize {
    let mut words = sections.div_ceil(TREE_FANOUT);
    let mut total = words;
    while words > 1 {
        words = words.div_ceil(TREE_FANOUT);
        total += words;
    }
    total
}

impl<'a> Tree<'a> {
    /// A tree over `sections` sections in `words`, which hold [`words_needed`] words.
    pub(crate) fn new(words: &'a [AtomicU64], sections: usize) -> Tree<'a> {
        debug_assert_eq!(words.len(), words_needed(sections));
        Tree { words, sections }
    }

    /// Makes sure that `section` is found. The caller has just made its word nonzero.
    pub(crate) fn set(self, section: usize) {
        fence(Ordering::SeqCst); // pairs with the one in `clear`
        self.set_from(self.words, self.sections, section);
    }

    fn set_from(self, mut level: &[AtomicU64], mut bits: usize, mut index: usize) {
        loop {
            let words = bits.div_ceil(TREE_FANOUT);
            let Some(word) = level.get(index / TREE_FANOUT).known() else { return };
            let bit = 1 << (index % TREE_FANOUT);
            // Always to the top: that this bit is set does not mean that its setter has gone on
            // to the next level yet, and it may be interrupted by us.
            if word.load(Ordering::Relaxed) & bit == 0 {
                // Release pairs with the Acquire loads of the search.
                word.fetch_or(bit, Ordering::Release);
                fence(Ordering::SeqCst); // the same rule again, one level up
            } else if mutant!("a set stops at a set bit") {
                return;
            }
            if words <= 1 {
                return;
            }
            level = &level[words..];
            bits = words;
            index /= TREE_FANOUT;
        }
    }

    /// The first section at or above `from` that may have something.
    ///
    /// Subtrees that turn out empty are cleared on the way. Cost: a few loads a level.
    pub(crate) fn next(self, from: usize) -> Option<usize> {
        self.walk(from, |levels, level, index| self.clear(levels, level, index), || {})
    }

    /// The same, and counts the words that it looks at.
    pub(crate) fn next_counted(self, from: usize, words: &mut u64) -> Option<usize> {
        self.walk(from, |levels, level, index| self.clear(levels, level, index), || *words += 1)
    }

    /// The same for onlookers: clears nothing on the way, and so hides nothing from the searcher
    /// that the tree is there for, not even for a moment.
    pub(crate) fn peek(self, from: usize) -> Option<usize> {
        if mutant!("an onlooker clears on its way") {
            return self.next(from);
        }
        self.walk(from, |_, _, _| {}, || {})
    }

    /// `on_empty` gets the level and the index of each bit that turns out to lie; `on_word` is called
    /// for each word that is looked at.
    fn walk(
        self,
        from: usize,
        on_empty: impl Fn(&Levels<'_>, usize, usize),
        mut on_word: impl FnMut(),
    ) -> Option<usize> {
        if from >= self.sections {
            return None;
        }
        let levels = self.levels();
        let mut level = 0;
        let mut index = from;
        loop {
            // Up until there is a bit at or above `index`, ...
            let word = levels.word(level, index / TREE_FANOUT)?;
            on_word();
            // Acquire pairs with the Release of the set.
            let here = word.load(Ordering::Acquire) >> (index % TREE_FANOUT);
            if here == 0 {
                index = index / TREE_FANOUT + 1;
                level += 1;
                if level == levels.count {
                    return None;
                }
                continue;
            }
            index += here.trailing_zeros() as usize;
            // ... then down along the lowest bits.
            loop {
                if level == 0 {
                    return Some(index);
                }
                on_word();
                let below = levels.word(level - 1, index)?.load(Ordering::Acquire);
                if below == 0 {
                    on_empty(&levels, level, index);
                    index += 1;
                    break;
                }
                level -= 1;
                index = index * TREE_FANOUT + below.trailing_zeros() as usize;
            }
        }
    }

    /// The last section at or below `from` that may have something; the mirror of
    /// [`next`](Self::next).
    pub(crate) fn prev(self, from: usize) -> Option<usize> {
        self.walk_down(from, || {})
    }

    /// The same, and counts the words that it looks at.
    pub(crate) fn prev_counted(self, from: usize, words: &mut u64) -> Option<usize> {
        self.walk_down(from, || *words += 1)
    }

    fn walk_down(self, from: usize, mut on_word: impl FnMut()) -> Option<usize> {
        let levels = self.levels();
        let mut level = 0;
        let mut index = from.min(self.sections.checked_sub(1)?);
        loop {
            // Up until there is a bit at or below `index`, ...
            let word = levels.word(level, index / TREE_FANOUT)?;
            on_word();
            let unwanted = 63 - index % TREE_FANOUT;
            let here = word.load(Ordering::Acquire) << unwanted;
            if here == 0 {
                level += 1;
                if level == levels.count {
                    return None;
                }
                index = (index / TREE_FANOUT).checked_sub(1)?;
                continue;
            }
            index -= here.leading_zeros() as usize;
            // ... then down along the highest bits.
            loop {
                if level == 0 {
                    return Some(index);
                }
                on_word();
                let below = levels.word(level - 1, index)?.load(Ordering::Acquire);
                if below == 0 {
                    self.clear(&levels, level, index);
                    index = index.checked_sub(1)?;
                    break;
                }
                level -= 1;
                index = index * TREE_FANOUT + 63 - below.leading_zeros() as usize;
            }
        }
    }

    /// How many levels it has: the words that [`set`](Self::set) looks at.
    pub(crate) fn height(self) -> usize {
        self.levels().count
    }

    /// Whether the topmost word leads nowhere.
    pub(crate) fn looks_empty(self) -> bool {
        self.words.last().is_none_or(|top| top.load(Ordering::Acquire) == 0)
    }

    /// A searcher found `section` empty: clears its bit, unless `is_empty` no longer holds.
    pub(crate) fn clear_leaf(self, section: usize, is_empty: impl Fn() -> bool) {
        let Some(word) = self.words.get(section / TREE_FANOUT).known() else { return };
        word.fetch_and(!(1 << (section % TREE_FANOUT)), Ordering::AcqRel);
        fence(Ordering::SeqCst); // pairs with the one in `set`
        if !is_empty() {
            self.set(section);
        }
    }

    /// The word `index` of `level - 1` was seen empty: clears its bit in `level`, and sets it again
    /// if the word has filled meanwhile.
    fn clear(self, levels: &Levels<'_>, level: usize, index: usize) {
        let Some(word) = levels.word(level, index / TREE_FANOUT).known() else { return };
        word.fetch_and(!(1 << (index % TREE_FANOUT)), Ordering::AcqRel);
        fence(Ordering::SeqCst); // pairs with the one in `set`
        let refilled =
            levels.word(level - 1, index).is_some_and(|w| w.load(Ordering::Relaxed) != 0);
        if refilled {
            let (above, bits) = (levels.from(level), levels.bits(level));
            let only_here = mutant!("setting again does not propagate");
            let above = if only_here { &above[..bits.div_ceil(TREE_FANOUT)] } else { above };
            self.set_from(above, bits, index);
        }
    }

    /// Whether the bit of `section` and all bits above it are set.
    pub(crate) fn leads_to(self, section: usize) -> bool {
        let levels = self.levels();
        let mut index = section;
        (0..levels.count).all(|level| {
            let set = levels.word(level, index / TREE_FANOUT).is_some_and(|word| {
                word.load(Ordering::Relaxed) & (1 << (index % TREE_FANOUT)) != 0
            });
            index /= TREE_FANOUT;
            set
        })
    }

    fn levels(self) -> Levels<'a> {
        let mut levels = Levels {
            words: self.words,
            start: [0; MAX_LEVELS + 1],
            count: 0,
            sections: self.sections,
        };
        let mut words = self.sections.div_ceil(TREE_FANOUT);
        loop {
            levels.start[levels.count + 1] = levels.start[levels.count] + words;
            levels.count += 1;
            if words <= 1 {
                return levels;
            }
            words = words.div_ceil(TREE_FANOUT);
        }
    }
}

/// Where each level of a tree starts.
struct Levels<'a> {
    words: &'a [AtomicU64],
    start: [usize; MAX_LEVELS + 1],
    count: usize,
    sections: usize,
}

impl<'a> Levels<'a> {
    fn word(&self, level: usize, index: usize) -> Option<&'a AtomicU64> {
        let at = self.start[level] + index;
        if at < self.start[level + 1] { self.words.get(at) } else { None }
    }

    /// The words from `level` up.
    fn from(&self, level: usize) -> &'a [AtomicU64] {
        &self.words[self.start[level]..]
    }

    /// How many bits of `level` mean something.
    fn bits(&self, level: usize) -> usize {
        match level {
            0 => self.sections,
            _ => self.start[level] - self.start[level - 1],
        }
    }
}
