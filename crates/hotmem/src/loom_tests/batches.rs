//! Models calls that allocate or free many single frames.

use super::machine::{BLOCK, range};
use super::{Machine, large_model, model};
use crate::frames::AllocRequest;
use std::vec;

const ONE_FRAME: AllocRequest = AllocRequest::frames(1);

#[test]
fn batches_race() {
    model(|| {
        let machine = Machine::new(1);
        let [held] = machine.alloc_singles();
        // Both threads run as CPU 0, and allocate from the pageblock that is its hint. One frame of
        // the pageblock is in use.
        let other_thread = machine.spawn_on(0, |machine| machine.alloc_many(ONE_FRAME, 2));
        let mine = machine.alloc_many(ONE_FRAME, 2);
        let other = other_thread.join().unwrap();
        assert_eq!((mine.len(), other.len()), (2, 2));
        machine.check();
        machine.free_many([mine, other, vec![held]].into_iter().flatten());
        machine.check_empty();
    });
}

#[test]
fn a_batch_races_with_frees() {
    model(|| {
        let machine = Machine::new(1);
        let [a, b, c] = machine.alloc_singles();
        let other_thread = machine.spawn_on(1, |machine| machine.free_many([a, b]));
        let mine = machine.alloc_many(ONE_FRAME, 3);
        other_thread.join().unwrap();
        assert_eq!(mine.len(), 3);
        machine.check();
        machine.free_many(mine.into_iter().chain([c]));
        machine.check_empty();
    });
}

#[test]
fn a_batch_races_with_a_free_in_flight() {
    model(|| {
        let machine = Machine::new(1);
        let [held] = machine.alloc_singles();
        let other_thread = machine.spawn_on(1, |machine| machine.free(held));
        // The batch may take the frame whose free is in flight.
        let mine = machine.alloc_many(ONE_FRAME, 3);
        other_thread.join().unwrap();
        assert_eq!(mine.len(), 3);
        machine.free_many(mine);
        machine.check_empty();
    });
}

#[test]
fn two_cpus_free_batches() {
    model(|| {
        let machine = Machine::new(1);
        let [a, b, c, d] = machine.alloc_singles();
        let other_thread = machine.spawn_on(1, |machine| machine.free_many([a, c]));
        machine.free_many([d, b]);
        other_thread.join().unwrap();
        machine.check_empty();
    });
}

#[test]
fn a_batch_races_with_isolation() {
    large_model(1, 3, || {
        let machine = Machine::new(1);
        let [held] = machine.alloc_singles();
        let other_thread = machine.spawn_on(1, |machine| {
            let token = machine.isolate_range(range(0, BLOCK));
            token.map(|token| token.release()).is_ok()
        });
        let mine = machine.alloc_many(ONE_FRAME, 3);
        other_thread.join().unwrap();
        assert_eq!(mine.len(), 3);
        machine.check();
        machine.free_many(mine.into_iter().chain([held]));
        machine.check_empty();
    });
}
