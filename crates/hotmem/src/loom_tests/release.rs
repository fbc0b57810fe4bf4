//! Models the release of an isolation during each other operation.

use super::instance::{BLOCK, Held, ONE_BLOCK, ONE_FRAME, range};
use super::{Instance, large_model, model};
use std::sync::Arc;

/// Isolates the first pageblock, and releases it while another CPU frees `freed`, a part of the
/// pageblock. After that, frees `remaining`, all other frames in use.
fn release_during(
    instance: &Arc<Instance>,
    freed: Held,
    remaining: impl IntoIterator<Item = Held>,
) {
    let token = instance.call().isolate_range(range(0, BLOCK)).unwrap();
    let other_thread = instance.spawn_on(1, |instance| instance.free(freed));
    token.release();
    other_thread.join().unwrap();
    instance.check();
    remaining.into_iter().for_each(|held| instance.free(held));
    instance.check_empty();
}

#[test]
fn release_races_with_a_free_of_a_part() {
    model(|| {
        let instance = Instance::new(1);
        let second_block = instance.alloc_second_block();
        let (low, high) = instance.split(instance.alloc(ONE_BLOCK), 1);
        release_during(&instance, low, [high, second_block]);
    });
}

#[test]
fn release_races_with_the_last_free() {
    large_model(|| {
        let instance = Instance::new(1);
        let second_block = instance.alloc_second_block();
        let [a] = instance.alloc_singles();
        let token = instance.call().isolate_range(range(0, BLOCK)).unwrap();
        let other_thread = instance.spawn_on(1, |instance| instance.free(a));
        token.release();
        let main_held = instance.try_alloc(ONE_BLOCK);
        other_thread.join().unwrap();
        instance.check();
        main_held.into_iter().chain([second_block]).for_each(|held| instance.free(held));
        instance.check_empty();
    });
}

#[test]
fn release_races_with_a_free_that_is_not_the_last() {
    model(|| {
        let instance = Instance::new(1);
        let second_block = instance.alloc_second_block();
        let [a, b] = instance.alloc_singles();
        release_during(&instance, a, [b, second_block]);
    });
}

#[test]
fn a_frame_freed_under_isolation_is_found_after_the_release() {
    model(|| {
        let instance = Instance::new(1);
        let second_block = instance.alloc_second_block();
        let all @ [_, _, _, _] = instance.alloc_singles();
        let [a, b, c, d] = all;
        release_during(&instance, a, [b, c, d, second_block]);
    });
}

#[test]
fn release_races_with_a_hint_that_is_replaced() {
    model(|| {
        let instance = Instance::new(1);
        let [a] = instance.alloc_singles();
        let token = instance.call().isolate_range(range(0, BLOCK)).unwrap();
        // CPU 0's hint is isolated, so this allocation takes a frame of the other pageblock, which
        // becomes the hint.
        let other_thread = instance.spawn_on(0, |instance| instance.alloc(ONE_FRAME));
        token.release();
        let other_held = other_thread.join().unwrap();
        instance.check();
        [a, other_held].into_iter().for_each(|held| instance.free(held));
        instance.check_empty();
    });
}
