//! Models searches for runs that hide pageblocks without runs, beside frees that make a run.

use super::instance::{BLOCK, Held, ONE_FRAME, range};
use super::{Instance, large_model, model};
use crate::frames::{AllocError, AllocRequest};
use std::sync::Arc;
use std::vec::Vec;

const TWO_FRAMES: AllocRequest = AllocRequest::frames(2);

/// Returns an instance in which one frame of each word of the first pageblock is free, and one frame
/// of the second pageblock. The first pageblock is no hint, and no cursor points to it. Also returns
/// the other frames, those of the first pageblock first.
fn without_runs() -> (Arc<Instance>, [Held; 5]) {
    let instance = Instance::new(1);
    let [a, b, c, d, e, f, g, h] = instance.alloc_singles();
    [f, b, d].into_iter().for_each(|held| instance.free(held));
    (instance, [a, c, e, g, h])
}

/// Checks that an allocation of two frames succeeds, with these frames or others, and frees all.
fn check_run(instance: &Instance, held: Result<Held, AllocError>, others: Vec<Held>) {
    instance.check();
    instance.free(held.unwrap_or_else(|_| instance.alloc(TWO_FRAMES)));
    others.into_iter().for_each(|held| instance.free(held));
    instance.check_empty();
}

#[test]
fn a_run_becomes_free_while_its_pageblock_is_hidden() {
    model(|| {
        let (instance, [a, others @ ..]) = without_runs();
        let other_thread = instance.spawn_on(1, |instance| instance.free(a));
        let main_held = instance.try_alloc(TWO_FRAMES);
        other_thread.join().unwrap();
        check_run(&instance, main_held, others.into());
    });
}

#[test]
fn a_run_becomes_free_in_a_hidden_pageblock() {
    model(|| {
        let (instance, [a, others @ ..]) = without_runs();
        assert_eq!(instance.try_alloc(TWO_FRAMES).err(), Some(AllocError::OutOfMemory));
        let other_thread = instance.spawn_on(1, |instance| instance.free(a));
        let main_held = instance.try_alloc(TWO_FRAMES);
        other_thread.join().unwrap();
        check_run(&instance, main_held, others.into());
    });
}

#[test]
fn two_runs_become_free_in_a_hidden_pageblock() {
    model(|| {
        let (instance, [a, c, others @ ..]) = without_runs();
        assert!(instance.try_alloc(TWO_FRAMES).is_err());
        let other_thread = instance.spawn_on(1, |instance| instance.free(a));
        instance.free(c);
        other_thread.join().unwrap();
        check_run(&instance, Err(AllocError::Busy), others.into());
    });
}

/// A run is free all the time, so the allocation must not fail as "out of memory". The other CPU takes a
/// frame of the second run at its cursor, without a hiding step.
#[test]
fn a_run_of_a_hidden_pageblock_becomes_free_before_another_is_split() {
    model(|| {
        let instance = Instance::new(1);
        let [a, b, c, d, e, f, g, h] = instance.alloc_singles();
        // The cursor stays at the word of `g`, because that word has a free frame.
        [g, b, d].into_iter().for_each(|held| instance.free(held));
        assert!(instance.try_alloc(TWO_FRAMES).is_err());
        instance.free(h);
        let other_thread = instance.spawn_on(0, |instance| {
            instance.free(a);
            instance.alloc(ONE_FRAME)
        });
        let main_held = instance.run_as(1, |instance| instance.try_alloc(TWO_FRAMES));
        assert!(!matches!(main_held, Err(AllocError::OutOfMemory)), "a run was free");
        let other_held = other_thread.join().unwrap();
        instance.check();
        let held = main_held.into_iter().chain([other_held, c, e, f]);
        held.for_each(|held| instance.free(held));
        instance.check_empty();
    });
}

/// The pageblock becomes partly free while the search finds that the section has no such pageblock.
#[test]
fn a_pageblock_becomes_partly_free_while_the_path_is_cleared() {
    model(|| {
        let instance = Instance::new(1);
        let [a, b, c, others @ ..] = instance.alloc_singles::<8>();
        let other_thread = instance.spawn_on(1, |instance| instance.try_alloc(TWO_FRAMES));
        // The cursor follows the first free, so the second one sets the bit in `partial`.
        [a, c, b].into_iter().for_each(|held| instance.free(held));
        let other_held = other_thread.join().unwrap();
        check_run(&instance, other_held, others.into());
    });
}

#[test]
fn a_pageblock_is_divided_anew_while_it_is_hidden() {
    large_model(|| {
        let (instance, [a, c, others @ ..]) = without_runs();
        let other_thread = instance.spawn_on(1, |instance| {
            instance.free(a);
            instance.free(c);
            instance.try_alloc(ONE_FRAME.within(..range(BLOCK, 1).start()))
        });
        let main_held = instance.try_alloc(TWO_FRAMES);
        let other_held = other_thread.join().unwrap();
        let others = others.into_iter().chain(other_held);
        check_run(&instance, main_held, others.collect());
    });
}

#[test]
fn two_searches_hide_a_pageblock_while_a_run_becomes_free() {
    large_model(|| {
        let (instance, [a, others @ ..]) = without_runs();
        let second = instance.spawn_on(1, |instance| instance.try_alloc(TWO_FRAMES));
        let third = instance.spawn_on(2, |instance| instance.free(a));
        let main_held = instance.try_alloc(TWO_FRAMES);
        third.join().unwrap();
        let held = main_held.or(second.join().unwrap());
        check_run(&instance, held, others.into());
    });
}
