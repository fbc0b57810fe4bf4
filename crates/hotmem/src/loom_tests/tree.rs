//! The tree alone: leaves that fill and empty, over three levels.

use super::model;
use crate::sync::{AtomicU64, Ordering, fence};
use crate::words::{Tree, words_needed};
use loom::thread;
use std::sync::Arc;
use std::vec::Vec;

/// A tree over 8 sections (4 + 2 + 1 words), and the sections' words.
struct Wood {
    leaves: Vec<AtomicU64>,
    words: Vec<AtomicU64>,
}

impl Wood {
    fn new() -> Arc<Wood> {
        let zeroes = |n| (0..n).map(|_| AtomicU64::new(0)).collect();
        Arc::new(Wood { leaves: zeroes(8), words: zeroes(words_needed(8)) })
    }

    fn tree(&self) -> Tree<'_> {
        Tree::new(&self.words, 8)
    }

    /// As the engine does it.
    fn fill(&self, section: usize) {
        self.leaves[section].fetch_or(1, Ordering::Release);
        self.tree().set(section);
    }

    fn empty(&self, section: usize) {
        self.leaves[section].fetch_and(0, Ordering::Acquire);
    }

    /// Looks for something, and clears on the way what is empty.
    fn search(&self) -> Option<usize> {
        let mut from = 0;
        while let Some(section) = self.tree().next(from) {
            from = section + 1;
            let is_empty = || self.leaves[section].load(Ordering::Acquire) == 0;
            if !is_empty() {
                return Some(section);
            }
            self.tree().clear_leaf(section, is_empty);
        }
        None
    }

    /// Nobody is in flight: every section with something is found.
    fn check(&self) {
        for (section, leaf) in self.leaves.iter().enumerate() {
            if leaf.load(Ordering::Acquire) != 0 {
                assert!(self.tree().leads_to(section), "section {section} is not found");
            }
        }
    }
}

fn on(
    number: usize,
    wood: &Arc<Wood>,
    work: impl FnOnce(&Wood) + 'static,
) -> thread::JoinHandle<()> {
    let wood = wood.clone();
    thread::spawn(move || {
        crate::sync::begin_thread(number);
        work(&wood);
    })
}

#[test]
fn a_leaf_fills_while_it_is_cleared() {
    model(|| {
        let wood = Wood::new();
        wood.fill(5);
        wood.empty(5);
        let other = on(1, &wood, |wood| wood.fill(5));
        wood.search();
        other.join().unwrap();
        wood.check();
        assert_eq!(wood.search(), Some(5));
    });
}

#[test]
fn a_leaf_fills_while_a_word_above_it_is_cleared() {
    model(|| {
        let wood = Wood::new();
        wood.fill(5);
        wood.empty(5);
        // Clears the leaf's bit; the bits above it go with the next search.
        wood.search();
        let other = on(1, &wood, |wood| wood.fill(4));
        wood.search();
        other.join().unwrap();
        wood.check();
    });
}

#[test]
fn neighbours_fill_while_the_words_above_them_are_cleared() {
    model(|| {
        let wood = Wood::new();
        wood.fill(5);
        wood.empty(5);
        wood.search();
        let other = on(1, &wood, |wood| wood.fill(4));
        let another = on(2, &wood, |wood| wood.fill(5));
        wood.search();
        other.join().unwrap();
        another.join().unwrap();
        wood.check();
    });
}

#[test]
fn searchers_clear_the_same() {
    model(|| {
        let wood = Wood::new();
        wood.fill(5);
        wood.empty(5);
        wood.search();
        let other = on(1, &wood, |wood| wood.fill(4));
        let another = on(2, &wood, |wood| {
            wood.search();
        });
        wood.search();
        other.join().unwrap();
        another.join().unwrap();
        wood.check();
    });
}

#[test]
fn a_neighbour_fills_while_a_leaf_is_cleared() {
    model(|| {
        let wood = Wood::new();
        wood.fill(5);
        wood.empty(5);
        let other = on(1, &wood, |wood| wood.fill(4));
        wood.search();
        other.join().unwrap();
        wood.check();
    });
}

#[test]
fn a_cousin_fills_while_a_word_is_cleared() {
    model(|| {
        let wood = Wood::new();
        wood.fill(5);
        wood.empty(5);
        wood.search();
        let other = on(1, &wood, |wood| wood.fill(6));
        wood.search();
        other.join().unwrap();
        wood.check();
    });
}

#[test]
fn an_onlooker_hides_nothing_from_a_searcher_that_falls_asleep() {
    model(|| {
        let wood = Wood::new();
        wood.fill(5);
        wood.empty(5);
        wood.search();
        let asleep = Arc::new(AtomicU64::new(0));
        let bell = asleep.clone();
        let other = on(1, &wood, move |wood| {
            wood.fill(4);
            if bell.load(Ordering::Relaxed) == 1 {
                bell.store(2, Ordering::Relaxed);
            }
        });
        let another = on(2, &wood, |wood| {
            wood.tree().peek(0);
        });
        asleep.store(1, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        let found = wood.search();
        other.join().unwrap();
        another.join().unwrap();
        assert!(found == Some(4) || asleep.load(Ordering::Relaxed) == 2, "nobody has woken it");
    });
}

#[test]
fn a_leaf_fills_twice() {
    model(|| {
        let wood = Wood::new();
        let other = on(1, &wood, |wood| wood.fill(5));
        wood.fill(5);
        // Even if the other one was interrupted half-way up.
        assert_eq!(wood.search(), Some(5));
        other.join().unwrap();
    });
}
