//! Models memory that is known to be zero. Each allocation of a model checks the engine's answer.

use super::instance::{BLOCK, Held, ONE_BLOCK, ONE_FRAME, range};
use super::{Instance, large_model, model};
use crate::frames::AllocRequest;
use std::sync::Arc;

const TWO_FRAMES: AllocRequest = AllocRequest::frames(2);
const LONG_RUN: AllocRequest = AllocRequest::frames(BLOCK - 1);

/// Returns an instance in which only the first pageblock is free, and is known to be zero. Also
/// returns the other pageblock.
fn with_one_zero_block() -> (Arc<Instance>, Held) {
    let instance = Instance::new(1);
    let second_block = instance.alloc_second_block();
    assert!(instance.zero_block(0));
    (instance, second_block)
}

/// Returns an allocation of frame `number`.
fn frame(instance: &Instance, number: u64) -> Held {
    instance.alloc(ONE_FRAME.at(range(number, 1).start()))
}

/// Checks the instance, and frees all.
fn finish(instance: &Instance, held: impl IntoIterator<Item = Held>) {
    instance.check();
    held.into_iter().for_each(|held| instance.free(held));
    instance.check_empty();
}

#[test]
fn a_free_races_with_an_allocation_from_a_word_of_zero_frames() {
    model(|| {
        let (instance, second_block) = with_one_zero_block();
        let a = instance.alloc_known_zero(ONE_FRAME);
        let other_thread = instance.spawn_on(1, |instance| instance.free(a));
        let b = instance.try_alloc(ONE_FRAME).ok();
        other_thread.join().unwrap();
        finish(&instance, b.into_iter().chain([second_block]));
    });
}

#[test]
fn runs_are_freed_during_an_allocation_from_a_word_of_zero_frames() {
    for run in [TWO_FRAMES, LONG_RUN] {
        model(move || {
            let (instance, second_block) = with_one_zero_block();
            let a = instance.alloc_known_zero(run);
            let other_thread = instance.spawn_on(1, |instance| instance.try_alloc(ONE_FRAME).ok());
            instance.free(a);
            let b = other_thread.join().unwrap();
            finish(&instance, b.into_iter().chain([second_block]));
        });
    }
}

#[test]
fn the_last_free_races_with_a_whole_allocation_of_a_zero_pageblock() {
    model(|| {
        let (instance, second_block) = with_one_zero_block();
        let a = instance.run_as(1, |instance| instance.alloc_known_zero(ONE_FRAME));
        let other_thread = instance.spawn_on(2, |instance| instance.free(a));
        let block = instance.try_alloc(ONE_BLOCK).ok();
        other_thread.join().unwrap();
        finish(&instance, block.into_iter().chain([second_block]));
    });
}

#[test]
fn the_last_free_races_with_an_allocation_of_a_zero_pageblock_at_its_place() {
    model(|| {
        let (instance, second_block) = with_one_zero_block();
        let a = instance.run_as(1, |instance| instance.alloc_known_zero(ONE_FRAME));
        let other_thread = instance.spawn_on(2, |instance| instance.free(a));
        let block = instance.try_alloc(ONE_BLOCK.at(range(0, 1).start())).ok();
        other_thread.join().unwrap();
        finish(&instance, block.into_iter().chain([second_block]));
    });
}

#[test]
fn a_zero_pageblock_is_allocated_while_another_cpu_divides_it() {
    model(|| {
        let (instance, second_block) = with_one_zero_block();
        let other_thread = instance.spawn_on(1, |instance| instance.try_alloc(ONE_BLOCK).ok());
        let a = instance.try_alloc(ONE_FRAME).ok();
        let block = other_thread.join().unwrap();
        finish(&instance, a.into_iter().chain(block).chain([second_block]));
    });
}

#[test]
fn a_search_marks_the_words_of_a_pageblock_that_was_zero() {
    model(|| {
        let (instance, second_block) = with_one_zero_block();
        // The first word has a dirty free frame and no mark, the second a zero frame and its mark.
        let a = instance.run_as(1, |instance| instance.alloc_known_zero(ONE_FRAME));
        let [b, c] = [frame(&instance, 1), frame(&instance, 2)];
        instance.free(b);
        let other_thread = instance.spawn_on(1, |instance| instance.try_alloc(TWO_FRAMES).ok());
        let b = instance.try_alloc(ONE_FRAME).ok();
        let run = other_thread.join().unwrap();
        finish(&instance, run.into_iter().chain(b).chain([a, c, second_block]));
    });
}

#[test]
fn a_pageblock_is_zeroed_and_divided_anew_while_a_search_marks_its_words() {
    model(|| {
        let instance = Instance::new(1);
        let second_block = instance.alloc_second_block();
        // The search has found the pageblock before it became free.
        let other_thread = instance.spawn_on(1, |instance| {
            let (call, block) = (instance.call(), instance.section(0).block(0).unwrap());
            let bitmap = call.bitmap_of(block).unwrap();
            call.while_marking(block, || bitmap.mark_without_runs());
        });
        assert!(instance.zero_block(0));
        let [a, b] = instance.alloc_singles();
        instance.free(b);
        other_thread.join().unwrap();
        finish(&instance, [a, second_block]);
    });
}

#[test]
fn a_zero_pageblock_is_isolated_and_overwritten() {
    model(|| {
        let (instance, second_block) = with_one_zero_block();
        let block = range(0, BLOCK);
        let other_thread = instance.spawn_on(1, move |instance| {
            if let Ok(token) = instance.call().isolate_range(block) {
                if token.in_use().is_none() {
                    instance.overwrite(block);
                }
                token.release();
            }
        });
        let a = instance.try_alloc(ONE_FRAME).ok();
        other_thread.join().unwrap();
        finish(&instance, a.into_iter().chain([second_block]));
    });
}

#[test]
fn first_divisions_of_zero_pageblocks_race() {
    large_model(|| {
        let instance = Instance::boot_without_bitmaps(1);
        assert!(instance.zero_block(0) && instance.zero_block(1));
        // The CPU that loses has written bitmaps to a frame of its pageblock, which becomes free.
        instance.race_allocations(ONE_FRAME, 1, ONE_FRAME);
        instance.check();
    });
}
