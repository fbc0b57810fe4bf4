//! Models the release of an isolation during each other operation.

use super::isolation::{ONE_BLOCK, ONE_FRAME, alloc_second_block};
use super::machine::{BLOCK, Held, range};
use super::{Machine, large_model, model};
use std::sync::Arc;

/// Isolates the first pageblock, and releases it while another CPU frees `freed`, a part of the
/// pageblock. After that, frees `kept`, all other frames in use.
fn release_during(machine: &Arc<Machine>, freed: Held, kept: impl IntoIterator<Item = Held>) {
    let token = machine.isolate_range(range(0, BLOCK)).unwrap();
    let other_thread = machine.spawn_on(1, |machine| machine.free(freed));
    token.release();
    other_thread.join().unwrap();
    machine.check();
    kept.into_iter().for_each(|held| machine.free(held));
    machine.check_empty();
}

#[test]
fn release_races_with_a_free_of_a_part() {
    model(|| {
        let machine = Machine::new(1);
        let second_block = alloc_second_block(&machine);
        let (low, high) = machine.split(machine.alloc(ONE_BLOCK), 1);
        release_during(&machine, low, [high, second_block]);
    });
}

#[test]
fn release_races_with_the_last_free() {
    large_model(1, 3, || {
        let machine = Machine::new(1);
        let second_block = alloc_second_block(&machine);
        let [a] = machine.alloc_singles();
        let token = machine.isolate_range(range(0, BLOCK)).unwrap();
        let other_thread = machine.spawn_on(1, |machine| machine.free(a));
        token.release();
        let mine = machine.try_alloc(ONE_BLOCK);
        other_thread.join().unwrap();
        machine.check();
        mine.into_iter().chain([second_block]).for_each(|held| machine.free(held));
        machine.check_empty();
    });
}

#[test]
fn release_races_with_a_free_that_is_not_the_last() {
    model(|| {
        let machine = Machine::new(1);
        let second_block = alloc_second_block(&machine);
        let [a, b] = machine.alloc_singles();
        release_during(&machine, a, [b, second_block]);
    });
}

#[test]
fn a_frame_freed_under_isolation_is_found_after_the_release() {
    model(|| {
        let machine = Machine::new(1);
        let second_block = alloc_second_block(&machine);
        let all @ [_, _, _, _] = machine.alloc_singles();
        let [a, b, c, d] = all;
        release_during(&machine, a, [b, c, d, second_block]);
    });
}

#[test]
fn release_races_with_a_hint_that_is_replaced() {
    model(|| {
        let machine = Machine::new(1);
        let [a] = machine.alloc_singles();
        let token = machine.isolate_range(range(0, BLOCK)).unwrap();
        // CPU 0's hint is isolated, so this allocation takes a frame of the other pageblock, which
        // becomes the hint.
        let other_thread = machine.spawn_on(0, |machine| machine.alloc(ONE_FRAME));
        token.release();
        let other = other_thread.join().unwrap();
        machine.check();
        [a, other].into_iter().for_each(|held| machine.free(held));
        machine.check_empty();
    });
}
