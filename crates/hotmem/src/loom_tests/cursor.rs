//! Models cursors: free frames of a word that can be found only by a cursor, and cursors to words
//! of memory that goes offline.

use super::machine::{BLOCK, Held, range};
use super::{Machine, model};
use crate::frames::{AllocError, AllocRequest};
use std::sync::Arc;

const ONE_FRAME: AllocRequest = AllocRequest::frames(1);

/// Returns a machine whose frames are all in use, and the frames of both pageblocks. Pageblock 1 is
/// CPU 0's hint.
fn full_machine() -> (Arc<Machine>, [Held; 4], [Held; 4]) {
    let machine = Machine::new(1);
    let first = machine.alloc_singles();
    let second = machine.alloc_singles();
    (machine, first, second)
}

#[test]
fn two_threads_move_one_cursor() {
    model(|| {
        let (machine, [a, b, c, d], second) = full_machine();
        let interrupt = machine.spawn_on(0, |machine| machine.free(a));
        machine.free(c);
        interrupt.join().unwrap();
        machine.check();
        [b, d].into_iter().chain(second).for_each(|held| machine.free(held));
        machine.check_empty();
    });
}

#[test]
fn a_cursor_leaves_a_word_while_a_frame_of_it_is_freed() {
    model(|| {
        let (machine, [a, b, c, d], second) = full_machine();
        machine.free(a);
        // This takes a frame of the word that the cursor points to, and does not move the cursor.
        let a = machine.alloc(ONE_FRAME);
        let interrupt = machine.spawn_on(0, |machine| machine.free(a));
        machine.free(c);
        interrupt.join().unwrap();
        machine.check();
        [b, d].into_iter().chain(second).for_each(|held| machine.free(held));
        machine.check_empty();
    });
}

#[test]
fn an_allocation_moves_a_cursor_while_a_frame_of_its_word_is_freed() {
    model(|| {
        let (machine, [a, b, c, d], [e, f, g, h]) = full_machine();
        machine.free(a);
        let a = machine.alloc(ONE_FRAME);
        // This frame is in pageblock 1, which is the hint.
        machine.free(e);
        machine.free(f);
        let interrupt = machine.spawn_on(0, |machine| machine.free(a));
        let mine = machine.alloc(ONE_FRAME);
        interrupt.join().unwrap();
        machine.check();
        [b, c, d, g, h, mine].into_iter().for_each(|held| machine.free(held));
        machine.check_empty();
    });
}

#[test]
fn a_search_races_with_the_clearing_of_a_cursor() {
    model(|| {
        let (machine, [a, b, c, d], second) = full_machine();
        machine.free(a);
        let other_thread = machine.spawn_on(1, |machine| machine.try_alloc(ONE_FRAME));
        machine.clear_cursors();
        let other = other_thread.join().unwrap();
        assert!(
            !matches!(other, Err(AllocError::OutOfMemory)),
            "an allocation ran out of memory although a frame was free all the time"
        );
        machine.check();
        other.into_iter().chain([b, c, d]).chain(second).for_each(|held| machine.free(held));
        machine.check_empty();
    });
}

#[test]
fn another_cpu_takes_a_frame_of_the_word_at_a_cursor() {
    model(|| {
        let (machine, [a, b, c, d], second) = full_machine();
        machine.free(a);
        machine.free(b);
        let other_thread = machine.spawn_on(1, |machine| machine.alloc(ONE_FRAME));
        let mine = machine.alloc(ONE_FRAME);
        let other = other_thread.join().unwrap();
        machine.check();
        [mine, other, c, d].into_iter().chain(second).for_each(|held| machine.free(held));
        machine.check_empty();
    });
}

#[test]
fn a_free_sets_a_cursor_while_its_pageblock_goes_offline() {
    model(|| {
        let machine = Machine::new(1);
        let frames = machine.alloc_singles();
        // CPU 1 has counted a hiding step before, so its free moves its cursor.
        let beside = machine.run_as(1, |machine| machine.alloc(ONE_FRAME));
        machine.free(beside);
        take_offline_during_a_free(&machine, frames);
    });
}

#[test]
fn a_cpu_frees_its_first_frame_while_the_pageblock_goes_offline() {
    model(|| {
        let machine = Machine::new(1);
        let frames = machine.alloc_singles();
        take_offline_during_a_free(&machine, frames);
    });
}

fn take_offline_during_a_free(machine: &Arc<Machine>, [a, b, c, d]: [Held; 4]) {
    let other_thread = machine.spawn_on(1, |machine| machine.free(a));
    [b, c, d].into_iter().for_each(|frame| machine.free(frame));
    let is_gone = machine.take_offline(range(0, BLOCK));
    let is_final = machine.clear_cursors();
    other_thread.join().unwrap();
    assert!(
        !(is_gone && is_final && machine.has_cursors()),
        "a cursor points to a word of memory that is offline"
    );
    machine.validate();
}
