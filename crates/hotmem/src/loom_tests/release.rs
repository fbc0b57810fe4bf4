//! Models the release of an isolation during each other operation.

use super::isolation::{ONE, WHOLE, alloc_second_block};
use super::machine::{BLOCK, Held, range};
use super::{Machine, model};
use std::sync::Arc;

/// Isolates the first pageblock, and releases it while another CPU frees `freed`, a part of the
/// pageblock. After that, frees `kept`, all other frames in use.
fn release_during(machine: &Arc<Machine>, freed: Held, kept: impl IntoIterator<Item = Held>) {
    let token = machine.isolate(range(0, BLOCK)).unwrap();
    let other = machine.on_cpu(1, |machine| machine.free(freed));
    token.release();
    other.join().unwrap();
    machine.check();
    kept.into_iter().for_each(|held| machine.free(held));
    machine.check_empty();
}

#[test]
fn release_races_with_a_free_of_a_part() {
    model(|| {
        let machine = Machine::new(1);
        let second_block = alloc_second_block(&machine);
        let (low, high) = machine.split(machine.alloc(WHOLE), 1);
        release_during(&machine, low, [high, second_block]);
    });
}

#[test]
fn release_races_with_the_last_free() {
    model(|| {
        let machine = Machine::new(1);
        let second_block = alloc_second_block(&machine);
        let [a] = machine.alloc_singles();
        let token = machine.isolate(range(0, BLOCK)).unwrap();
        let other = machine.on_cpu(1, |machine| machine.free(a));
        token.release();
        let mine = machine.try_alloc(WHOLE);
        other.join().unwrap();
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
        let token = machine.isolate(range(0, BLOCK)).unwrap();
        // CPU 0's hint is isolated, so this allocation takes a frame of the other pageblock, which
        // becomes the hint.
        let other = machine.on_cpu(0, |machine| machine.alloc(ONE));
        token.release();
        let other = other.join().unwrap();
        machine.check();
        [a, other].into_iter().for_each(|held| machine.free(held));
        machine.check_empty();
    });
}
