//! Models the directory: chunks that are installed during searches, bits that are set and cleared at
//! the same time, and sections that change their node.

mod setup;

use super::model;
use crate::sync::{AtomicU64, Ordering, fence};
use crate::words::{Class, Zone};
use setup::{FREE, Setup, id, node, spawn_thread};
use std::sync::Arc;

#[test]
fn a_chunk_is_installed_during_a_search() {
    model(|| {
        let setup = Setup::new();
        setup.install(0, 0);
        let other_thread = spawn_thread(1, &setup, |setup| {
            setup.install(4, 0);
            setup.fill(4);
        });
        if let Some(found) = setup.claim(0) {
            assert_eq!(found, id(4));
            let section = setup.directory.section(found).unwrap();
            assert_eq!(section.online.load(Ordering::Relaxed), 1);
            setup.fill(4);
        }
        // This section is looked up without a search.
        if let Some(section) = setup.directory.section(id(4)) {
            section.partial.load(Ordering::Relaxed);
        }
        other_thread.join().unwrap();
        setup.check(8);
        assert_eq!(setup.claim(0), Some(id(4)));
    });
}

#[test]
fn a_chunk_is_installed_under_a_stale_bit() {
    model(|| {
        let setup = Setup::new();
        setup.install(0, 0);
        // This leaves the node's bit of the chunk set, though the chunk has no free section.
        setup.fill(1);
        assert_eq!(setup.claim(0), Some(id(1)));
        let other_thread = spawn_thread(1, &setup, |setup| {
            setup.install(5, 0);
            setup.fill(5);
        });
        let found = setup.claim(0);
        other_thread.join().unwrap();
        setup.check(8);
        if found.is_none() {
            assert_eq!(setup.claim(0), Some(id(5)));
        }
    });
}

#[test]
fn two_nodes_fill_one_chunk() {
    model(|| {
        let setup = Setup::new();
        setup.install(0, 0);
        setup.install(1, 1);
        let other_thread = spawn_thread(1, &setup, |setup| setup.fill(1));
        let third_thread = spawn_thread(2, &setup, |setup| setup.fill(0));
        let found = setup.claim(1);
        assert!(found.is_none_or(|found| found == id(1)));
        other_thread.join().unwrap();
        third_thread.join().unwrap();
        setup.check(4);
        assert_eq!(setup.claim(0), Some(id(0)));
    });
}

#[test]
fn a_section_changes_its_node_during_a_search() {
    model(|| {
        let setup = Setup::new();
        setup.install(0, 0);
        setup.fill(0);
        let other_thread = spawn_thread(1, &setup, |setup| {
            setup.move_to(0, 1);
        });
        if let Some(found) = setup.claim(0) {
            // The section was on node 0 when it was claimed, and a claimed section does not change
            // its node.
            assert_eq!(setup.directory.node(found), Some(node(0)));
            setup.fill(0);
        }
        other_thread.join().unwrap();
        setup.check(4);
        let node_number = setup.directory.node(id(0)).unwrap().number();
        assert_eq!(setup.claim(node_number), Some(id(0)));
    });
}

#[test]
fn a_section_gets_memory_while_the_bit_of_the_other_node_is_cleared() {
    model(|| {
        let setup = Setup::new();
        setup.install(0, 0);
        setup.install(1, 1);
        setup.fill(0);
        assert_eq!(setup.claim(0), Some(id(0)));
        let other_thread = spawn_thread(1, &setup, |setup| {
            // This moves the section, which is absent, to node 1.
            setup.install(2, 1);
            setup.fill(2);
        });
        let third_thread = spawn_thread(2, &setup, |setup| {
            setup.claim(0);
        });
        let found = setup.claim(1);
        other_thread.join().unwrap();
        third_thread.join().unwrap();
        setup.check(4);
        if found.is_none() {
            assert_eq!(setup.claim(1), Some(id(2)));
        }
    });
}

#[test]
fn a_slow_publisher_races_with_a_change_of_node() {
    model(|| {
        let setup = Setup::new();
        setup.install(0, 0);
        let other_thread = spawn_thread(1, &setup, |setup| {
            // This publisher is slow: the section may have changed its node before it publishes.
            let section = setup.directory.section(id(0)).unwrap();
            if section.partial.fetch_or(1, Ordering::AcqRel) == 0 {
                setup.directory.set_path(Class::partial(Zone::Kernel), id(0));
            }
        });
        setup.install(0, 1);
        let section = setup.directory.section(id(0)).unwrap();
        // If the other bit of the word is set, this publisher sets no path, and relies on the path
        // that leads to the section already.
        if section.partial.fetch_or(2, Ordering::AcqRel) == 0 {
            setup.directory.set_path(Class::partial(Zone::Kernel), id(0));
        }
        other_thread.join().unwrap();
        assert!(setup.directory.leads_to(Class::partial(Zone::Kernel), id(0)));
    });
}

#[test]
fn a_neighbour_stays_findable_while_an_empty_section_is_hidden() {
    model(|| {
        let setup = Setup::new();
        for n in 0..3 {
            setup.install(n, 0);
            setup.fill(n);
        }
        setup.directory.section(id(1)).unwrap().claim_all(1);
        let other_thread = spawn_thread(1, &setup, |setup| {
            setup.directory.section(id(0)).unwrap().claim_all(1);
            setup.claim(0);
        });
        other_thread.join().unwrap();
        setup.check(4);
    });
}

#[test]
fn a_leaf_gets_memory_while_the_bits_above_it_are_cleared() {
    model(|| {
        let setup = Setup::new();
        setup.install(0, 0);
        setup.install(4, 0);
        setup.fill(4);
        assert_eq!(setup.claim(0), Some(id(4)));
        let other_thread = spawn_thread(1, &setup, |setup| setup.fill(5));
        let third_thread = spawn_thread(2, &setup, |setup| setup.fill(0));
        setup.claim(0);
        other_thread.join().unwrap();
        third_thread.join().unwrap();
        setup.check(8);
    });
}

#[test]
fn two_sections_are_hidden_and_get_memory() {
    model(|| {
        let setup = Setup::new();
        for n in 0..2 {
            setup.install(n, 0);
            setup.fill(n);
        }
        setup.directory.section(id(0)).unwrap().claim_all(1);
        setup.directory.section(id(1)).unwrap().claim_all(1);
        setup.directory.clear_section_bit(FREE, id(1));
        let other_thread = spawn_thread(1, &setup, |setup| setup.fill(1));
        setup.directory.hide_if_empty(FREE, id(0));
        other_thread.join().unwrap();
        setup.check(2);
    });
}

#[test]
fn a_section_gets_memory_while_it_is_hidden() {
    model(|| {
        let setup = Setup::new();
        setup.install(0, 0);
        setup.fill(0);
        assert_eq!(setup.claim(0), Some(id(0)));
        let other_thread = spawn_thread(1, &setup, |setup| setup.fill(0));
        let found = setup.claim(0);
        other_thread.join().unwrap();
        setup.check(1);
        assert_eq!(found.or_else(|| setup.claim(0)), Some(id(0)));
    });
}

#[test]
fn a_chunk_gets_memory_while_the_bit_of_another_is_cleared() {
    model(|| {
        let setup = Setup::new();
        setup.install(0, 0);
        setup.install(4, 0);
        setup.fill(4);
        assert_eq!(setup.claim(0), Some(id(4)));
        // This clears the section's bit. The next search clears the chunk's bit.
        assert_eq!(setup.claim(0), None);
        let other_thread = spawn_thread(1, &setup, |setup| setup.fill(0));
        setup.claim(0);
        other_thread.join().unwrap();
        setup.check(8);
    });
}

#[test]
fn two_searchers_clear_the_same_bits() {
    model(|| {
        let setup = Setup::new();
        setup.install(0, 0);
        setup.install(4, 0);
        setup.fill(4);
        assert_eq!(setup.claim(0), Some(id(4)));
        assert_eq!(setup.claim(0), None);
        let other_thread = spawn_thread(1, &setup, |setup| setup.fill(5));
        let third_thread = spawn_thread(2, &setup, |setup| {
            setup.claim(0);
        });
        setup.claim(0);
        other_thread.join().unwrap();
        third_thread.join().unwrap();
        setup.check(8);
    });
}

#[test]
fn a_read_only_search_hides_nothing_from_a_searcher_that_falls_asleep() {
    model(|| {
        let setup = Setup::new();
        setup.install(0, 0);
        setup.install(4, 0);
        setup.fill(4);
        assert_eq!(setup.claim(0), Some(id(4)));
        assert_eq!(setup.claim(0), None);
        let asleep = Arc::new(AtomicU64::new(0));
        let wakeup = asleep.clone();
        let other_thread = spawn_thread(1, &setup, move |setup| {
            setup.fill(5);
            if wakeup.load(Ordering::Relaxed) == 1 {
                wakeup.store(2, Ordering::Relaxed);
            }
        });
        let third_thread = spawn_thread(2, &setup, |setup| {
            setup.directory.paths(node(0), FREE).read_only().next(id(0));
        });
        asleep.store(1, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        let found = setup.claim(0);
        other_thread.join().unwrap();
        third_thread.join().unwrap();
        let woken = asleep.load(Ordering::Relaxed) == 2;
        assert!(
            found == Some(id(5)) || woken,
            "the searcher sleeps, has not found the section, and was not woken"
        );
    });
}

#[test]
fn two_threads_set_one_path() {
    model(|| {
        let setup = Setup::new();
        setup.install(0, 0);
        let other_thread = spawn_thread(1, &setup, |setup| setup.fill(0));
        setup.fill(0);
        // The path is complete even if the other thread has not set all of its bits yet.
        assert!(setup.directory.leads_to(FREE, id(0)));
        assert_eq!(setup.directory.paths(node(0), FREE).next(id(0)), Some(id(0)));
        other_thread.join().unwrap();
    });
}
