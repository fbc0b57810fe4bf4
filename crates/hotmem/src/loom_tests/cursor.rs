//! Models cursors: free frames of a word that can be found only by a cursor, and cursors to words
//! of memory that goes offline.

use super::instance::{BLOCK, Held, ONE_FRAME, range};
use super::{Instance, large_model, model};
use crate::frames::AllocError;
use std::sync::Arc;

/// Returns an instance whose frames are all in use, and the frames of both pageblocks. Pageblock 1
/// is CPU 0's hint.
fn full_instance() -> (Arc<Instance>, [Held; 4], [Held; 4]) {
    let instance = Instance::new(1);
    let first = instance.alloc_singles();
    let second = instance.alloc_singles();
    (instance, first, second)
}

#[test]
fn two_threads_move_one_cursor() {
    model(|| {
        let (instance, [a, b, c, d], second) = full_instance();
        let interrupt = instance.spawn_on(0, |instance| instance.free(a));
        instance.free(c);
        interrupt.join().unwrap();
        instance.check();
        [b, d].into_iter().chain(second).for_each(|held| instance.free(held));
        instance.check_empty();
    });
}

#[test]
fn a_cursor_leaves_a_word_while_a_frame_of_it_is_freed() {
    model(|| {
        let (instance, [a, b, c, d], second) = full_instance();
        instance.free(a);
        // This takes a frame of the word that the cursor points to, and does not move the cursor.
        let a = instance.alloc(ONE_FRAME);
        let interrupt = instance.spawn_on(0, |instance| instance.free(a));
        instance.free(c);
        interrupt.join().unwrap();
        instance.check();
        [b, d].into_iter().chain(second).for_each(|held| instance.free(held));
        instance.check_empty();
    });
}

#[test]
fn an_allocation_moves_a_cursor_while_a_frame_of_its_word_is_freed() {
    model(|| {
        let (instance, [a, b, c, d], [e, f, g, h]) = full_instance();
        instance.free(a);
        let a = instance.alloc(ONE_FRAME);
        // This frame is in pageblock 1, which is the hint.
        instance.free(e);
        instance.free(f);
        let interrupt = instance.spawn_on(0, |instance| instance.free(a));
        let main_held = instance.alloc(ONE_FRAME);
        interrupt.join().unwrap();
        instance.check();
        [b, c, d, g, h, main_held].into_iter().for_each(|held| instance.free(held));
        instance.check_empty();
    });
}

#[test]
fn a_search_races_with_the_clearing_of_a_cursor() {
    large_model(|| {
        let (instance, [a, b, c, d], second) = full_instance();
        instance.free(a);
        let other_thread = instance.spawn_on(1, |instance| instance.try_alloc(ONE_FRAME));
        instance.call().forget_hints(range(0, 2 * BLOCK));
        let other_held = other_thread.join().unwrap();
        assert!(
            !matches!(other_held, Err(AllocError::OutOfMemory)),
            "an allocation ran out of memory although a frame was free all the time"
        );
        instance.check();
        other_held.into_iter().chain([b, c, d]).chain(second).for_each(|held| instance.free(held));
        instance.check_empty();
    });
}

#[test]
fn another_cpu_takes_a_frame_of_the_word_at_a_cursor() {
    model(|| {
        let (instance, [a, b, c, d], second) = full_instance();
        instance.free(a);
        instance.free(b);
        let other_thread = instance.spawn_on(1, |instance| instance.alloc(ONE_FRAME));
        let main_held = instance.alloc(ONE_FRAME);
        let other_held = other_thread.join().unwrap();
        instance.check();
        [main_held, other_held, c, d]
            .into_iter()
            .chain(second)
            .for_each(|held| instance.free(held));
        instance.check_empty();
    });
}

#[test]
fn a_free_sets_a_cursor_while_its_pageblock_goes_offline() {
    large_model(|| {
        let instance = Instance::new(1);
        let frames = instance.alloc_singles();
        // CPU 1 has counted a hiding step before, so its free moves its cursor.
        let frame_of_cpu_1 = instance.run_as(1, |instance| instance.alloc(ONE_FRAME));
        instance.free(frame_of_cpu_1);
        let [a, b, c, d] = frames;
        let other_thread = instance.spawn_on(1, |instance| instance.free(a));
        [b, c, d].into_iter().for_each(|frame| instance.free(frame));
        let offline = range(0, BLOCK);
        let is_offline = instance.take_offline(offline);
        other_thread.join().unwrap();
        let held = instance.run_as(1, |instance| instance.alloc(ONE_FRAME));
        assert!(!is_offline || !offline.overlaps(held.range()), "offline memory was allocated");
        instance.free(held);
        instance.validate();
    });
}
