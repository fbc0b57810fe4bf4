//! Models allocations and frees of single frames and of runs in divided pageblocks.

use super::instance::{BLOCK, ONE_FRAME, range};
use super::{Instance, Preemptions, check_model, large_model, model, model_preemptions};
use crate::frames::{AllocError, AllocRequest};

const TWO_FRAMES: AllocRequest = AllocRequest::frames(2);

#[test]
fn free_races_with_allocation() {
    model(|| {
        let instance = Instance::new(1);
        let [held] = instance.alloc_singles();
        let other_thread = instance.spawn_on(1, |instance| instance.free(held));
        let main_held = instance.alloc(ONE_FRAME);
        other_thread.join().unwrap();
        instance.free(main_held);
        instance.check_empty();
    });
}

#[test]
fn allocations_race_for_the_last_frame() {
    model(|| {
        let instance = Instance::new(1);
        let _held = instance.alloc_singles::<7>();
        let other_thread = instance.spawn_on(1, |instance| instance.try_alloc(ONE_FRAME).is_ok());
        let main_succeeds = instance.try_alloc(ONE_FRAME).is_ok();
        assert!(main_succeeds != other_thread.join().unwrap());
        instance.check();
    });
}

#[test]
fn allocations_race_in_one_word() {
    model(|| {
        let instance = Instance::new(1);
        let [a] = instance.alloc_singles();
        let other_thread = instance.spawn_on(0, |instance| instance.alloc(ONE_FRAME));
        let main_held = instance.alloc(ONE_FRAME);
        for held in [a, main_held, other_thread.join().unwrap()] {
            instance.free(held);
        }
        instance.check_empty();
    });
}

#[test]
fn last_frees_race() {
    large_model(|| {
        let instance = Instance::new(1);
        let [a, b, c, d, e] = instance.alloc_singles();
        instance.free(a);
        instance.free(b);
        // Pageblock 1 is CPU 0's hint, and pageblock 0 is no hint.
        let other_thread = instance.spawn_on(1, |instance| instance.free(c));
        instance.free(d);
        let main_held = instance.try_alloc(AllocRequest::frames(BLOCK));
        other_thread.join().unwrap();
        instance.check();
        main_held.into_iter().chain([e]).for_each(|held| instance.free(held));
        instance.check_empty();
    });
}

#[test]
fn last_frees_race_in_the_hint_of_one_cpu() {
    model(|| {
        let instance = Instance::new(1);
        let [a, b] = instance.alloc_singles();
        let other_thread = instance.spawn_on(1, |instance| instance.free(a));
        instance.free(b);
        other_thread.join().unwrap();
        instance.check_empty();
    });
}

#[test]
fn last_free_in_a_hint_races_with_an_allocation() {
    model(|| {
        let instance = Instance::new(1);
        let [a] = instance.alloc_singles();
        let other_thread = instance.spawn_on(0, |instance| instance.free(a));
        let main_held = instance.alloc(ONE_FRAME);
        other_thread.join().unwrap();
        instance.check();
        instance.free(main_held);
        instance.check_empty();
    });
}

#[test]
fn last_free_in_a_hint_races_with_an_allocation_of_a_pageblock() {
    model(|| {
        let instance = Instance::new(1);
        let (a, b) = (instance.alloc(ONE_FRAME), instance.alloc(AllocRequest::frames(BLOCK)));
        let other_thread = instance.spawn_on(0, |instance| instance.free(a));
        // The other pageblock is in use, so this allocation can only take the one that is divided.
        let main_held = instance.try_alloc(AllocRequest::frames(BLOCK));
        other_thread.join().unwrap();
        instance.check();
        main_held.into_iter().chain([b]).for_each(|held| instance.free(held));
        instance.check_empty();
    });
}

#[test]
fn last_free_races_with_a_small_allocation() {
    model(|| {
        let instance = Instance::new(1);
        let [a] = instance.alloc_singles();
        let other_thread = instance.spawn_on(1, |instance| instance.free(a));
        let main_held = instance.alloc(ONE_FRAME);
        other_thread.join().unwrap();
        instance.check();
        instance.free(main_held);
        instance.check_empty();
    });
}

#[test]
fn coalescing_races_with_a_claim() {
    large_model(|| {
        let instance = Instance::new(1);
        let [a, b] = [instance.alloc(AllocRequest::frames(BLOCK)), instance.alloc(ONE_FRAME)];
        let other_thread = instance.spawn_on(1, |instance| instance.free(b));
        let main_held = instance.try_alloc(AllocRequest::frames(BLOCK));
        other_thread.join().unwrap();
        instance.check();
        main_held.into_iter().for_each(|held| instance.free(held));
        instance.free(a);
        instance.check_empty();
    });
}

#[test]
fn coalescing_races_with_an_allocation_in_the_same_pageblock() {
    large_model(|| {
        let instance = Instance::new(1);
        let [a, b, c, d, e] = instance.alloc_singles();
        // Pageblock 0 is no hint. Its bit in `partial` is set, and `a` is its only frame in use.
        [b, c, d].into_iter().for_each(|held| instance.free(held));
        let in_first_block = ONE_FRAME.within(..range(BLOCK, 1).start());
        let other_thread = instance.spawn_on(1, move |instance| instance.try_alloc(in_first_block));
        instance.free(a);
        let other_held = other_thread.join().unwrap();
        instance.check();
        other_held.into_iter().chain([e]).for_each(|held| instance.free(held));
        instance.check_empty();
    });
}

#[test]
fn a_hold_that_is_given_up_races_with_an_allocation() {
    model(|| {
        let instance = Instance::new(1);
        // CPU 0's cursor points to a word of the second pageblock.
        let [a, b, c, d, rest @ ..] = instance.alloc_singles::<7>();
        [b, c, d].into_iter().for_each(|held| instance.free(held));
        let in_first_block = TWO_FRAMES.within(..range(BLOCK, 1).start());
        // The free may hold the first word while the allocation takes both frames of the second
        // word.
        let other_thread = instance.spawn_on(1, |instance| instance.free(a));
        let main_held = instance.try_alloc(in_first_block);
        other_thread.join().unwrap();
        instance.check();
        main_held.into_iter().chain(rest).for_each(|held| instance.free(held));
        instance.check_empty();
    });
}

#[test]
fn a_hold_that_is_given_up_races_with_an_allocation_and_its_free() {
    check_model(Preemptions { usual: 1, deep: 4 }, || {
        let instance = Instance::new(1);
        let [a, b, c, d, e] = instance.alloc_singles();
        let last = ONE_FRAME.at(d.range().start());
        [b, c, d].into_iter().for_each(|held| instance.free(held));
        // The second pageblock is CPU 0's hint, and has free frames. The free of `a` may hold the
        // first word of the first pageblock, and give up because the frame of `last` is allocated.
        let other_thread = instance.spawn_on(1, move |instance| {
            instance.try_alloc(last).into_iter().for_each(|held| instance.free(held));
        });
        instance.free(a);
        other_thread.join().unwrap();
        let whole = instance.alloc(AllocRequest::frames(BLOCK));
        [e, whole].into_iter().for_each(|held| instance.free(held));
        instance.check_empty();
    });
}

#[test]
fn a_free_races_with_a_search_that_takes_the_pageblock_out_of_partial() {
    model(|| {
        let instance = Instance::new(1);
        let [a, b, c, d, rest @ ..] = instance.alloc_singles::<7>();
        // The bit of the first pageblock in `partial` is set, though no frame of it is free any
        // more. The second pageblock has free frames. It is CPU 0's hint, and CPU 0's cursor points
        // to a word of it.
        let place = ONE_FRAME.at(a.range().start());
        instance.free(a);
        let a = instance.alloc(place);
        let other_thread = instance.spawn_on(0, |instance| instance.free(b));
        let in_first_block = TWO_FRAMES.within(..range(BLOCK, 1).start());
        assert!(instance.run_as(1, |instance| instance.try_alloc(in_first_block)).is_err());
        other_thread.join().unwrap();
        instance.check();
        [a, c, d].into_iter().chain(rest).for_each(|held| instance.free(held));
        instance.check_empty();
    });
}

#[test]
fn divisions_race() {
    large_model(|| {
        let instance = Instance::new(1);
        instance.race_allocations(ONE_FRAME, 1, ONE_FRAME);
        instance.check_empty();
    });
}

#[test]
fn divisions_race_for_the_last_pageblock() {
    model(|| {
        let instance = Instance::new(1);
        let block = instance.alloc(AllocRequest::frames(BLOCK));
        let other_thread = instance.spawn_on(1, |instance| instance.try_alloc(ONE_FRAME));
        let main_held = instance.try_alloc(ONE_FRAME);
        for result in [main_held, other_thread.join().unwrap()] {
            match result {
                Ok(held) => instance.free(held),
                Err(error) => assert_eq!(error, AllocError::Busy),
            }
        }
        instance.free(block);
        instance.check_empty();
    });
}

#[test]
fn a_search_for_a_missing_run_races_with_a_free() {
    model(|| {
        let instance = Instance::new(1);
        let block = instance.alloc(AllocRequest::frames(BLOCK));
        let [a, b, c, d] = instance.alloc_singles();
        // One frame of each word is free, but no run of two frames.
        instance.free(b);
        instance.free(d);
        let other_thread = instance.spawn_on(1, |instance| instance.free(a));
        let main_held = instance.try_alloc(TWO_FRAMES);
        other_thread.join().unwrap();
        instance.check();
        main_held.into_iter().for_each(|held| instance.free(held));
        instance.free(c);
        instance.free(block);
        instance.check_empty();
    });
}

#[test]
fn runs_race() {
    model(|| {
        let instance = Instance::new(1);
        let block = instance.alloc(AllocRequest::frames(BLOCK));
        let [a] = instance.alloc_singles();
        let other_thread = instance.spawn_on(1, |instance| instance.try_alloc(TWO_FRAMES));
        let main_held = instance.try_alloc(TWO_FRAMES);
        let other_held = other_thread.join().unwrap();
        assert!(main_held.is_ok() != other_held.is_ok() || main_held.is_err());
        instance.check();
        main_held
            .into_iter()
            .chain(other_held)
            .chain([a, block])
            .for_each(|held| instance.free(held));
        instance.check_empty();
    });
}

#[test]
fn two_cpus_free_parts_of_one_allocation() {
    large_model(|| {
        let instance = Instance::new(1);
        let (low, high) = instance.split(instance.alloc(AllocRequest::frames(BLOCK)), 1);
        let other_thread = instance.spawn_on(1, |instance| instance.free(low));
        instance.free(high);
        other_thread.join().unwrap();
        instance.check_empty();
    });
}

#[test]
fn one_of_two_frees_of_a_frame_is_refused() {
    model(|| {
        let instance = Instance::new(1);
        let [a, _b] = instance.alloc_singles();
        let range = a.range();
        let other_thread = instance.spawn_on(1, move |instance| instance.try_free(range).is_ok());
        let main_succeeds = instance.try_free(range).is_ok();
        assert!(
            main_succeeds != other_thread.join().unwrap(),
            "exactly one of two frees of the same frame succeeds"
        );
        instance.forget_held(a);
        instance.check();
    });
}

#[test]
fn three_threads_use_one_pageblock() {
    large_model(|| {
        let instance = Instance::new(1);
        let block = instance.alloc(AllocRequest::frames(BLOCK));
        let [a, b, c] = instance.alloc_singles();
        let first = instance.spawn_on(1, |instance| instance.free(a));
        let second = instance.spawn_on(1, |instance| instance.try_alloc(ONE_FRAME));
        instance.free(b);
        first.join().unwrap();
        let second = second.join().unwrap();
        instance.check();
        second.into_iter().chain([block, c]).for_each(|held| instance.free(held));
        instance.check_empty();
    });
}

#[test]
fn runs_race_in_one_word() {
    large_model(|| {
        let instance = Instance::new(1);
        let block = instance.alloc(AllocRequest::frames(BLOCK).at(range(BLOCK, 1).start()));
        let [a] = instance.alloc_singles();
        // The divided pageblock is the hint of both CPUs.
        let b = instance.run_as(1, |instance| instance.alloc(ONE_FRAME));
        [a, b].into_iter().for_each(|held| instance.free(held));
        let other_thread = instance.spawn_on(1, |instance| instance.alloc_unless_busy(TWO_FRAMES));
        let main_held = instance.alloc_unless_busy(TWO_FRAMES);
        let other_held = other_thread.join().unwrap();
        instance.check();
        main_held.into_iter().chain(other_held).chain([block]).for_each(|held| instance.free(held));
        instance.check_empty();
    });
}

#[test]
fn a_search_without_a_suitable_run_races_with_an_allocation() {
    model_preemptions(1, || {
        let instance = Instance::new(1);
        let [a, b, c, d, e] = instance.alloc_singles();
        // The bit of pageblock 0 in `partial` is set. The pageblock has enough free frames, but no
        // run of free frames below the bound of the request.
        [b, c, d].into_iter().for_each(|held| instance.free(held));
        let below = |request: AllocRequest, pfn| request.within(..range(pfn, 1).start());
        let other_thread =
            instance.spawn_on(1, move |instance| instance.try_alloc(below(TWO_FRAMES, 2)));
        let main_held = instance.try_alloc(below(ONE_FRAME, BLOCK));
        assert!(other_thread.join().unwrap().is_err());
        instance.check();
        main_held.into_iter().chain([a, e]).for_each(|held| instance.free(held));
        instance.check_empty();
    });
}

#[test]
fn the_partial_bit_of_a_neighbour_is_set_during_a_search() {
    model(|| {
        let instance = Instance::new(2);
        let [a, b, c, d, e, rest @ ..] = instance.alloc_singles::<11>();
        // The third pageblock is CPU 0's hint, and CPU 0's cursor points to a word of it. The bit
        // of the first pageblock in `partial` is set.
        instance.free(a);
        let other_thread = instance.spawn_on(1, |instance| instance.alloc(ONE_FRAME));
        instance.free(e);
        let other_held = other_thread.join().unwrap();
        instance.validate();
        [b, c, d, other_held].into_iter().chain(rest).for_each(|held| instance.free(held));
        instance.validate();
    });
}
