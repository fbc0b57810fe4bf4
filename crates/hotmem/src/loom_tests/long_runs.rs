//! Models the fast paths of long runs, which take and free one word after the other. In a model, a
//! long run has three frames: all of the first word of a pageblock's bitmap, and the first one of
//! the second word.

use super::instance::{BLOCK, Held, ONE_BLOCK, ONE_FRAME, range};
use super::runs::{
    a_run_is_freed_twice, a_run_is_freed_while_hinted_pageblocks_are_joined, free_all,
    instance_with_run_hint,
};
use super::{Instance, large_model, model, model_preemptions};
use crate::frames::{AllocError, AllocRequest};
use crate::hotplug::OnlineType;
use std::sync::Arc;

const TWO_FRAMES: AllocRequest = AllocRequest::frames(2);
/// The number of frames of a long run.
const LONG: u64 = BLOCK - 1;
const LONG_RUN: AllocRequest = AllocRequest::frames(LONG);

#[test]
fn a_long_run_is_freed_into_an_exhausted_hint_while_the_hint_is_replaced() {
    model(|| {
        let instance = Instance::new(1);
        let run = instance.alloc(LONG_RUN);
        let last = instance.alloc(ONE_FRAME.at(range(BLOCK - 1, 1).start()));
        // Pageblock 0 is CPU 0's hint for runs, and has no free frame. The interrupt makes pageblock
        // 1 the hint, or takes a part of the run that is freed.
        let interrupt = instance.spawn_on(0, |instance| instance.alloc(TWO_FRAMES));
        instance.free(run);
        let other_held = interrupt.join().unwrap();
        free_all(&instance, [last, other_held]);
    });
}

#[test]
fn another_cpu_takes_the_last_frame_of_a_long_run() {
    model(|| {
        let (instance, second) = instance_with_run_hint();
        let last = ONE_FRAME.at(range(BLOCK - 2, 1).start());
        let other_thread = instance.spawn_on(1, move |instance| instance.try_alloc(last));
        let main_held = instance.try_alloc_at_hint(LONG);
        let other_held = other_thread.join().unwrap();
        assert!(main_held.is_some() || other_held.is_ok());
        free_all(&instance, main_held.into_iter().chain(other_held).chain([second]));
    });
}

#[test]
fn a_search_finds_the_frames_that_another_cpu_takes_and_puts_back() {
    model(|| {
        let (instance, second) = instance_with_run_hint();
        let other_thread = instance.spawn_on(1, |instance| {
            let last = instance.try_alloc(ONE_FRAME.at(range(BLOCK - 2, 1).start()));
            // Without this frame, no long run is free, so that the first two frames stay free.
            let run = last.is_ok().then(|| instance.try_alloc(TWO_FRAMES));
            (last.ok(), run)
        });
        let main_held = instance.try_alloc_at_hint(LONG);
        let (last, run) = other_thread.join().unwrap();
        assert!(
            !matches!(run, Some(Err(AllocError::OutOfMemory))),
            "an allocation ran out of memory although a run was free all the time"
        );
        let other_held = last.into_iter().chain(run.and_then(Result::ok));
        free_all(&instance, other_held.chain(main_held).chain([second]));
    });
}

#[test]
fn a_search_finds_a_long_run_that_is_freed_before_a_frame_of_another_run_is_taken() {
    model_preemptions(1, || {
        let instance = Instance::new(1);
        let long = instance.alloc(LONG_RUN);
        let last = instance.alloc(ONE_FRAME.at(range(BLOCK - 1, 1).start()));
        let others =
            instance.run_as(1, |instance| [(); BLOCK as usize].map(|()| instance.alloc(ONE_FRAME)));
        let [a, b, c, d] = others;
        [c, d].into_iter().for_each(|held| instance.free(held));
        // Pageblock 0 is CPU 0's hint for runs, and CPU 0's cursor leads to the word of `c` and `d`, the
        // last one of pageblock 1. A search on CPU 1 looks at them in this order. A run is free all the
        // time: the other thread frees the long run before it takes `c`.
        let other_thread = instance.spawn_on(0, |instance| {
            instance.free(long);
            instance.try_alloc(ONE_FRAME)
        });
        let main_held = instance.run_as(1, |instance| instance.try_alloc(TWO_FRAMES));
        let other_held = other_thread.join().unwrap();
        assert!(
            !matches!(main_held, Err(AllocError::OutOfMemory)),
            "an allocation ran out of memory although a run was free all the time"
        );
        free_all(&instance, main_held.into_iter().chain(other_held).chain([last, a, b]));
    });
}

#[test]
fn a_call_and_an_interrupt_allocate_and_free_long_runs() {
    large_model(|| {
        let (instance, second) = instance_with_run_hint();
        let pair = |instance: &Instance| {
            let run = instance.try_alloc_at_hint(LONG);
            run.into_iter().for_each(|run| instance.free(run));
        };
        let interrupt = instance.spawn_on(0, pair);
        pair(&instance);
        interrupt.join().unwrap();
        free_all(&instance, [second]);
    });
}

/// Isolates pageblock 0 on CPU 1 during `work` on CPU 0, which returns what it has allocated.
fn isolate_during(
    instance: &Arc<Instance>,
    work: impl FnOnce(&Instance) -> Option<Held>,
) -> Option<Held> {
    let other_thread = instance.spawn_on(1, |instance| {
        let token = instance.call().isolate_range(range(0, BLOCK)).ok()?;
        if token.in_use().is_none() {
            instance.overwrite(token.range());
        }
        token.release();
        Some(())
    });
    let held = work(instance);
    assert!(other_thread.join().unwrap().is_some());
    held
}

#[test]
fn a_long_run_is_allocated_during_an_isolation() {
    model(|| {
        let (instance, second) = instance_with_run_hint();
        let run = isolate_during(&instance, |instance| instance.try_alloc_at_hint(LONG));
        free_all(&instance, run.into_iter().chain([second]));
    });
}

#[test]
fn a_long_run_is_freed_during_an_isolation() {
    large_model(|| {
        let (instance, second) = instance_with_run_hint();
        let run = instance.alloc(LONG_RUN);
        isolate_during(&instance, |instance| {
            instance.free(run);
            None
        });
        free_all(&instance, [second]);
    });
}

#[test]
fn a_long_run_is_freed_while_hinted_pageblocks_are_joined() {
    a_run_is_freed_while_hinted_pageblocks_are_joined(LONG_RUN);
}

#[test]
fn one_of_two_frees_of_a_long_run_is_refused() {
    a_run_is_freed_twice(LONG_RUN, 0);
}

#[test]
fn a_whole_allocation_takes_the_pageblock_during_a_pair_of_a_long_run() {
    model(|| {
        let (instance, second) = instance_with_run_hint();
        let other_thread = instance.spawn_on(1, |instance| instance.try_alloc(ONE_BLOCK));
        let main_held = instance.try_alloc_at_hint(LONG);
        let main_held = main_held.map(|held| instance.free(held));
        let other_held = other_thread.join().unwrap();
        assert!(main_held.is_some() || other_held.is_ok());
        free_all(&instance, other_held.into_iter().chain([second]));
    });
}

/// CPU 1 frees the frames of one word of a long run, the first word if `is_first` is true. CPU 0 frees
/// those of the other word, and allocates the run.
fn a_part_is_freed_before_a_long_run_is_taken(is_first: bool) {
    model(move || {
        let (instance, second) = instance_with_run_hint();
        let (first, last) = instance.split(instance.alloc(LONG_RUN), 2);
        let (main_freed, other_freed) = if is_first { (last, first) } else { (first, last) };
        let other_thread = instance.spawn_on(1, move |instance| instance.free(other_freed));
        instance.free(main_freed);
        let main_held = instance.try_alloc_at_hint(LONG);
        other_thread.join().unwrap();
        free_all(&instance, main_held.into_iter().chain([second]));
    });
}

#[test]
fn the_first_word_is_freed_before_a_long_run_is_taken() {
    a_part_is_freed_before_a_long_run_is_taken(true);
}

#[test]
fn the_last_word_is_freed_before_a_long_run_is_taken() {
    a_part_is_freed_before_a_long_run_is_taken(false);
}

#[test]
fn the_pageblock_of_the_hint_changes_its_zone_before_a_long_run_is_taken() {
    large_model(|| {
        let (instance, second) = instance_with_run_hint();
        let other_thread = instance.spawn_on(1, |instance| {
            let first = range(0, BLOCK);
            let is_offline = instance.take_offline(first);
            if is_offline {
                instance.online(first, OnlineType::Movable);
                // The pageblock is divided again, in its new zone.
                let movable = instance.try_alloc(ONE_FRAME.movable());
                movable.into_iter().for_each(|held| instance.free(held));
            }
            is_offline
        });
        let main_held = instance.try_alloc_at_hint(LONG);
        let is_movable = other_thread.join().unwrap();
        assert!(!is_movable || main_held.is_none());
        free_all(&instance, main_held.into_iter().chain([second]));
    });
}
