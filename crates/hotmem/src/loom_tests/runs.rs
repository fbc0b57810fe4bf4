//! Models the fast paths of runs, which take a run of the CPU's hint for runs, and free one with a
//! look at this hint. In a model, a run of two frames fills a word, so each free of a run is a free
//! into a word without free frames.

use super::instance::{BLOCK, Held, ONE_BLOCK, ONE_FRAME, range};
use super::{Instance, model, model_preemptions};
use crate::frames::{AllocError, AllocRequest};
use std::sync::Arc;

const TWO_FRAMES: AllocRequest = AllocRequest::frames(2);

/// Returns an instance in which pageblock 0 is CPU 0's hint for runs, all its frames are free, and
/// pageblock 1 is allocated as a whole.
pub(super) fn instance_with_run_hint() -> (Arc<Instance>, Held) {
    let instance = Instance::new(1);
    let second = instance.alloc_second_block();
    let run = instance.alloc(TWO_FRAMES);
    instance.free(run);
    (instance, second)
}

pub(super) fn free_all(instance: &Instance, held: impl IntoIterator<Item = Held>) {
    instance.check();
    held.into_iter().for_each(|held| instance.free(held));
    instance.check_empty();
}

#[test]
fn a_run_is_freed_into_an_exhausted_hint_while_the_hint_is_replaced() {
    model(|| {
        let instance = Instance::new(1);
        let [a, b] = [instance.alloc(TWO_FRAMES), instance.alloc(TWO_FRAMES)];
        // Pageblock 0 is CPU 0's hint for runs, and has no free frame. The interrupt makes pageblock
        // 1 the hint, or takes the run that is freed.
        let interrupt = instance.spawn_on(0, |instance| instance.alloc(TWO_FRAMES));
        instance.free(a);
        let other_held = interrupt.join().unwrap();
        free_all(&instance, [b, other_held]);
    });
}

#[test]
fn a_search_finds_a_run_that_is_freed_before_the_frames_of_another_are_taken() {
    model_preemptions(1, || {
        let instance = Instance::new(1);
        let second = instance.alloc_second_block();
        let [a, b, c, d] = instance.alloc_singles();
        [c, d].into_iter().for_each(|held| instance.free(held));
        [a, b].into_iter().for_each(|held| instance.forget_held(held));
        // CPU 0's cursor leads to the word of `c` and `d`, the second one. A run is free all the time:
        // the other thread frees `a` and `b` before it takes `c` and `d`.
        let other_thread = instance.spawn_on(0, |instance| {
            instance.try_free(range(0, 2)).unwrap();
            [instance.try_alloc(ONE_FRAME), instance.try_alloc(ONE_FRAME)]
        });
        let main_held = instance.run_as(1, |instance| instance.try_alloc(TWO_FRAMES));
        let other_held = other_thread.join().unwrap();
        assert!(
            !matches!(main_held, Err(AllocError::OutOfMemory)),
            "an allocation ran out of memory although a run was free all the time"
        );
        let other_held = other_held.into_iter().flatten();
        free_all(&instance, main_held.into_iter().chain(other_held).chain([second]));
    });
}

#[test]
fn a_call_and_an_interrupt_allocate_and_free_runs() {
    model(|| {
        let (instance, second) = instance_with_run_hint();
        let interrupt = instance.spawn_on(0, |instance| {
            let run = instance.alloc(TWO_FRAMES);
            instance.free(run);
        });
        let run = instance.alloc(TWO_FRAMES);
        instance.free(run);
        interrupt.join().unwrap();
        free_all(&instance, [second]);
    });
}

#[test]
fn the_last_run_of_the_hint_is_freed_during_an_isolation() {
    model(|| {
        let (instance, second) = instance_with_run_hint();
        let run = instance.alloc(TWO_FRAMES);
        let other_thread = instance.spawn_on(1, |instance| {
            let token = instance.call().isolate_range(range(0, BLOCK)).ok()?;
            if token.in_use().is_none() {
                instance.overwrite(token.range());
            }
            token.release();
            Some(())
        });
        instance.free(run);
        let isolated = other_thread.join().unwrap();
        assert!(isolated.is_some());
        free_all(&instance, [second]);
    });
}

/// The run of `request` in the pageblock of the hint is freed while CPU 1 joins the hinted pageblocks.
pub(super) fn a_run_is_freed_while_hinted_pageblocks_are_joined(request: AllocRequest) {
    model(move || {
        let (instance, second) = instance_with_run_hint();
        let run = instance.alloc(request);
        let other_thread = instance.spawn_on(1, |instance| instance.call().coalesce_all_hinted());
        instance.free(run);
        other_thread.join().unwrap();
        free_all(&instance, [second]);
    });
}

#[test]
fn the_last_run_of_the_hint_is_freed_while_hinted_pageblocks_are_joined() {
    a_run_is_freed_while_hinted_pageblocks_are_joined(TWO_FRAMES);
}

/// The run of `request` in the pageblock of the hint is freed twice, on CPU 0 and on `other_cpu`.
pub(super) fn a_run_is_freed_twice(request: AllocRequest, other_cpu: usize) {
    model(move || {
        let (instance, second) = instance_with_run_hint();
        let run = instance.alloc(request);
        let range = run.range();
        let other_thread =
            instance.spawn_on(other_cpu, move |instance| instance.try_free(range).is_ok());
        let main_succeeds = instance.try_free(range).is_ok();
        assert!(
            main_succeeds != other_thread.join().unwrap(),
            "exactly one of two frees of the same run succeeds"
        );
        instance.forget_held(run);
        free_all(&instance, [second]);
    });
}

#[test]
fn one_of_two_frees_of_a_run_is_refused() {
    a_run_is_freed_twice(TWO_FRAMES, 1);
}

#[test]
fn a_whole_allocation_takes_the_pageblock_of_the_hint_during_a_pair() {
    model(|| {
        let (instance, second) = instance_with_run_hint();
        let other_thread = instance.spawn_on(1, |instance| instance.try_alloc(ONE_BLOCK));
        let main_held = instance.try_alloc(TWO_FRAMES);
        let main_held = main_held.map(|held| instance.free(held));
        let other_held = other_thread.join().unwrap();
        assert!(main_held.is_ok() || other_held.is_ok());
        free_all(&instance, other_held.into_iter().chain([second]));
    });
}

/// A run of the same pageblock as another is freed while `request` allocates two frames.
fn a_run_is_freed_while(request: AllocRequest) {
    model(move || {
        let instance = Instance::new(1);
        let block = instance.alloc(AllocRequest::frames(BLOCK));
        let [a, b] = [instance.alloc(TWO_FRAMES), instance.alloc(TWO_FRAMES)];
        instance.free(b);
        // The allocation may take the frames of `a` while their free is in flight.
        let other_thread = instance.spawn_on(1, |instance| instance.free(a));
        let main_held = instance.alloc_unless_busy(request);
        other_thread.join().unwrap();
        instance.check();
        main_held.into_iter().chain([block]).for_each(|held| instance.free(held));
        instance.check_empty();
    });
}

#[test]
fn a_run_is_freed_while_another_is_taken() {
    a_run_is_freed_while(TWO_FRAMES);
}

#[test]
fn a_run_is_freed_while_another_is_taken_below_a_bound() {
    a_run_is_freed_while(TWO_FRAMES.within(..range(4 * BLOCK, 1).start()));
}
