//! Models calls that allocate or free many single frames.

use super::instance::{BLOCK, ONE_FRAME, range};
use super::{Instance, large_model, model};
use std::vec;

#[test]
fn batches_race() {
    model(|| {
        let instance = Instance::new(1);
        let [held] = instance.alloc_singles();
        // Both threads run as CPU 0, and allocate from the pageblock that is its hint. One frame of
        // the pageblock is in use.
        let other_thread = instance.spawn_on(0, |instance| instance.alloc_many(ONE_FRAME, 2));
        let main_held = instance.alloc_many(ONE_FRAME, 2);
        let other_held = other_thread.join().unwrap();
        assert_eq!((main_held.len(), other_held.len()), (2, 2));
        instance.check();
        instance.free_many([main_held, other_held, vec![held]].into_iter().flatten());
        instance.check_empty();
    });
}

#[test]
fn a_batch_races_with_frees() {
    large_model(|| {
        let instance = Instance::new(1);
        let [a, b, c] = instance.alloc_singles();
        let other_thread = instance.spawn_on(1, |instance| instance.free_many([a, b]));
        let main_held = instance.alloc_many(ONE_FRAME, 3);
        other_thread.join().unwrap();
        assert_eq!(main_held.len(), 3);
        instance.check();
        instance.free_many(main_held.into_iter().chain([c]));
        instance.check_empty();
    });
}

#[test]
fn a_batch_races_with_a_free_in_flight() {
    large_model(|| {
        let instance = Instance::new(1);
        let [held] = instance.alloc_singles();
        let other_thread = instance.spawn_on(1, |instance| instance.free(held));
        // The batch may take the frame whose free is in flight.
        let main_held = instance.alloc_many(ONE_FRAME, 3);
        other_thread.join().unwrap();
        assert_eq!(main_held.len(), 3);
        instance.free_many(main_held);
        instance.check_empty();
    });
}

#[test]
fn two_cpus_free_batches() {
    model(|| {
        let instance = Instance::new(1);
        let [a, b, c, d] = instance.alloc_singles();
        let other_thread = instance.spawn_on(1, |instance| instance.free_many([a, c]));
        instance.free_many([d, b]);
        other_thread.join().unwrap();
        instance.check_empty();
    });
}

#[test]
fn a_batch_races_with_isolation() {
    large_model(|| {
        let instance = Instance::new(1);
        let [held] = instance.alloc_singles();
        let other_thread = instance.spawn_on(1, |instance| {
            let token = instance.call().isolate_range(range(0, BLOCK));
            token.map(|token| token.release()).is_ok()
        });
        let main_held = instance.alloc_many(ONE_FRAME, 3);
        other_thread.join().unwrap();
        assert_eq!(main_held.len(), 3);
        instance.check();
        instance.free_many(main_held.into_iter().chain([held]));
        instance.check_empty();
    });
}
