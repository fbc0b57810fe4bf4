//! Models the release of an isolation during every other operation.

use super::isolation::{ONE, WHOLE, all_but_the_first};
use super::machine::{BLOCK, Held, range};
use super::{Machine, model};
use std::sync::Arc;

/// Isolates the first pageblock, and releases it while another CPU frees `freed`, a part of it.
/// After that, frees `kept`, the rest of it.
fn release_beside(machine: &Arc<Machine>, freed: Held, kept: impl IntoIterator<Item = Held>) {
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
        let rest = all_but_the_first(&machine);
        let (low, high) = machine.split(machine.alloc(WHOLE), 1);
        release_beside(&machine, low, [high, rest]);
    });
}

#[test]
fn release_races_with_the_last_free() {
    model(|| {
        let machine = Machine::new(1);
        let rest = all_but_the_first(&machine);
        let [a] = machine.singles();
        let token = machine.isolate(range(0, BLOCK)).unwrap();
        let other = machine.on_cpu(1, |machine| machine.free(a));
        token.release();
        let mine = machine.try_alloc(WHOLE);
        other.join().unwrap();
        machine.check();
        mine.into_iter().chain([rest]).for_each(|held| machine.free(held));
        machine.check_empty();
    });
}

#[test]
fn release_races_with_a_free_that_is_not_the_last() {
    model(|| {
        let machine = Machine::new(1);
        let rest = all_but_the_first(&machine);
        let [a, b] = machine.singles();
        release_beside(&machine, a, [b, rest]);
    });
}

#[test]
fn a_frame_freed_under_isolation_is_found_after_the_release() {
    model(|| {
        let machine = Machine::new(1);
        let rest = all_but_the_first(&machine);
        let all @ [_, _, _, _] = machine.singles();
        let [a, b, c, d] = all;
        release_beside(&machine, a, [b, c, d, rest]);
    });
}

#[test]
fn release_races_with_a_hint_that_is_replaced() {
    model(|| {
        let machine = Machine::new(1);
        let [a] = machine.singles();
        let token = machine.isolate(range(0, BLOCK)).unwrap();
        // CPU 0's hint is isolated, so that its next frame comes from the other pageblock.
        let other = machine.on_cpu(0, |machine| machine.alloc(ONE));
        token.release();
        let other = other.join().unwrap();
        machine.check();
        [a, other].into_iter().for_each(|held| machine.free(held));
        machine.check_empty();
    });
}
