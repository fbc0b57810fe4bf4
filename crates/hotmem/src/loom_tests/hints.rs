//! Models hints that several threads change. Two threads that run as one CPU stand for a call and
//! an interrupt handler that interrupts it.

use super::instance::{BLOCK, ONE_BLOCK, ONE_FRAME, range};
use super::{Instance, Preemptions, check_model, large_model, model, model_preemptions};
use crate::frames::{AllocRequest, NodeChoice};
use crate::words::{NodeId, Zone};
use std::vec::Vec;

const TWO_FRAMES: AllocRequest = AllocRequest::frames(2);

#[test]
fn an_interrupt_allocates_and_frees_on_the_cpu_of_a_call() {
    model(|| {
        let instance = Instance::new(1);
        let [a] = instance.alloc_singles();
        let interrupt = instance.spawn_on(0, |instance| {
            let held = instance.alloc(ONE_FRAME);
            instance.free(held);
        });
        instance.free(a);
        interrupt.join().unwrap();
        instance.check_empty();
    });
}

#[test]
fn two_frees_each_make_their_pageblock_the_hint() {
    model(|| {
        let instance = Instance::new(1);
        let first @ [_, _, _, _] = instance.alloc_singles();
        let second @ [_, _, _, _] = instance.alloc_singles();
        let [a, b, c, d] = first;
        let [e, f, g, h] = second;
        // All frames of both pageblocks are in use, and pageblock 1 is CPU 0's hint.
        let interrupt = instance.spawn_on(0, |instance| instance.free(a));
        instance.free(e);
        interrupt.join().unwrap();
        instance.check();
        for held in [b, c, d, f, g, h] {
            instance.free(held);
        }
        instance.check_empty();
    });
}

#[test]
fn a_frame_of_an_exhausted_pageblock_is_freed() {
    large_model(|| {
        let instance = Instance::new(1);
        let block = instance.alloc(ONE_BLOCK);
        let [a, b, c, d] = instance.alloc_singles();
        let other_thread = instance.spawn_on(1, |instance| instance.free(a));
        let main_held = instance.try_alloc(ONE_FRAME);
        other_thread.join().unwrap();
        instance.check();
        main_held.into_iter().chain([b, c, d, block]).for_each(|held| instance.free(held));
        instance.check_empty();
    });
}

#[test]
fn two_threads_replace_the_same_hint() {
    large_model(|| {
        let instance = Instance::new(2);
        instance.race_allocations(ONE_FRAME, 0, ONE_FRAME);
        instance.check_empty();
    });
}

/// A search that starts again reads many old values, so a model of one preemption takes too long for
/// each change.
#[test]
fn an_old_hint_leads_to_a_pageblock_that_is_divided_again() {
    check_model(Preemptions { usual: 0, deep: 2 }, || {
        let instance = Instance::new(1);
        let block = instance.alloc(ONE_BLOCK.at(range(BLOCK, 1).start()));
        let [a] = instance.run_as(1, Instance::alloc_singles);
        // CPU 0 frees this frame, so the pageblock is coalesced. The pageblock is still CPU 1's
        // hint.
        instance.free(a);
        let other_thread = instance.spawn_on(1, |instance| instance.try_alloc(ONE_FRAME));
        let main_held = instance.try_alloc(ONE_FRAME);
        let other_held = other_thread.join().unwrap();
        instance.check();
        main_held.into_iter().chain(other_held).chain([block]).for_each(|held| instance.free(held));
        instance.check_empty();
    });
}

#[test]
fn two_threads_replace_the_same_hint_of_a_section() {
    model(|| {
        let instance = Instance::new(2);
        let other_thread =
            instance.spawn_on(0, |instance| [instance.alloc(ONE_BLOCK), instance.alloc(ONE_BLOCK)]);
        let main_held = instance.alloc(ONE_BLOCK);
        let other_held = other_thread.join().unwrap();
        instance.check();
        other_held.into_iter().chain([main_held]).for_each(|held| instance.free(held));
        instance.check_empty();
    });
}

#[test]
fn a_pageblock_of_an_exhausted_section_is_freed() {
    large_model(|| {
        let instance = Instance::new(2);
        let held: [_; 3] = std::array::from_fn(|_| instance.alloc(ONE_BLOCK));
        let [a, b, c] = held;
        let other_thread = instance.spawn_on(1, |instance| instance.free(a));
        let last = instance.alloc(ONE_BLOCK);
        let main_held = instance.try_alloc(ONE_BLOCK);
        other_thread.join().unwrap();
        instance.check();
        main_held.into_iter().chain([b, c, last]).for_each(|held| instance.free(held));
        instance.check_empty();
    });
}

#[test]
fn the_last_frame_of_a_hint_is_freed_while_the_hint_is_replaced() {
    model(|| {
        let instance = Instance::new(2);
        let [a, b, c, d] = instance.alloc_singles();
        for held in [b, c, d] {
            instance.free(held);
        }
        // Pageblock 0 is CPU 0's hint, and all its frames except `a` are free. The interrupt divides
        // another pageblock for the end of its run, and makes it the hint, so either the interrupt or
        // the free must coalesce pageblock 0.
        let interrupt =
            instance.spawn_on(0, |instance| instance.alloc(AllocRequest::frames(BLOCK + 1)));
        instance.free(a);
        let run = interrupt.join().unwrap();
        instance.check();
        instance.free(run);
        instance.check_empty();
    });
}

#[test]
fn the_last_run_of_a_hint_is_freed_while_the_hint_is_replaced() {
    large_model(|| {
        let instance = Instance::new(1);
        let run = instance.alloc(TWO_FRAMES);
        // Pageblock 0 is CPU 0's hint for runs, and all its frames except those of `run` are free.
        // The interrupt makes pageblock 1 the hint, so either the interrupt or the free must
        // coalesce pageblock 0.
        let interrupt = instance.spawn_on(0, |instance| {
            let rest = [instance.alloc(TWO_FRAMES), instance.alloc(TWO_FRAMES)];
            rest.into_iter().for_each(|held| instance.free(held));
        });
        instance.free(run);
        interrupt.join().unwrap();
        instance.check_empty();
    });
}

#[test]
fn the_last_runs_of_a_hint_are_freed_by_one_call_while_the_hint_is_replaced() {
    model_preemptions(3, || {
        let instance = Instance::new(1);
        for run in [instance.alloc(TWO_FRAMES), instance.alloc(TWO_FRAMES)] {
            instance.forget_held(run);
        }
        // Pageblock 0 is CPU 0's hint for runs, and has no free frame. The interrupt makes pageblock
        // 1 the hint, or takes a run that is freed.
        let interrupt = instance.spawn_on(0, |instance| instance.alloc(TWO_FRAMES));
        instance.try_free(range(0, BLOCK)).unwrap();
        let run = interrupt.join().unwrap();
        instance.check();
        instance.free(run);
        instance.check_empty();
    });
}

#[test]
fn a_whole_allocation_takes_a_pageblock_for_runs_during_its_last_free() {
    model(|| {
        let instance = Instance::new(1);
        let rest = instance.alloc(ONE_BLOCK.at(range(BLOCK, 1).start()));
        let run = instance.alloc(TWO_FRAMES);
        let other_thread = instance.spawn_on(1, |instance| instance.try_alloc(ONE_BLOCK));
        instance.free(run);
        let other_held = other_thread.join().unwrap();
        let main_held = instance.try_alloc(TWO_FRAMES);
        assert!(main_held.is_ok() != other_held.is_ok());
        instance.check();
        main_held.into_iter().chain(other_held).chain([rest]).for_each(|held| instance.free(held));
        instance.check_empty();
    });
}

#[test]
fn a_whole_allocation_takes_a_free_pageblock_that_stays_divided() {
    large_model(|| {
        let instance = Instance::new(1);
        let rest = instance.alloc(ONE_BLOCK.at(range(BLOCK, 1).start()));
        // The pageblock is wholly free, and stays divided because it is CPU 0's hint.
        let [a] = instance.alloc_singles();
        instance.free(a);
        let other_thread = instance.spawn_on(1, |instance| instance.try_alloc(ONE_BLOCK));
        let main_held = instance.try_alloc(ONE_FRAME);
        let other_held = other_thread.join().unwrap();
        assert!(main_held.is_ok() != other_held.is_ok());
        instance.check();
        main_held.into_iter().chain(other_held).chain([rest]).for_each(|held| instance.free(held));
        instance.check_empty();
    });
}

#[test]
fn a_run_of_pageblocks_takes_a_free_pageblock_that_stays_divided() {
    large_model(|| {
        let instance = Instance::new(1);
        let [a] = instance.alloc_singles();
        instance.free(a);
        let other_thread =
            instance.spawn_on(1, |instance| instance.try_alloc(AllocRequest::frames(2 * BLOCK)));
        let main_held = instance.try_alloc(ONE_FRAME);
        let other_held = other_thread.join().unwrap();
        assert!(main_held.is_ok() || other_held.is_ok());
        instance.check();
        main_held.into_iter().chain(other_held).for_each(|held| instance.free(held));
        instance.check_empty();
    });
}

#[test]
fn two_threads_with_one_cpu_number_set_section_hints() {
    model(|| {
        let instance = Instance::new(3);
        // The section that is CPU 0's hint has no free pageblock.
        let held = [instance.alloc(ONE_BLOCK), instance.alloc(ONE_BLOCK)];
        let interrupt = instance.spawn_on(0, |instance| instance.alloc(ONE_BLOCK));
        let main_held = instance.alloc(ONE_BLOCK);
        let other_held = interrupt.join().unwrap();
        instance.validate();
        [main_held, other_held].into_iter().chain(held).for_each(|held| instance.free(held));
        instance.validate();
    });
}

#[test]
fn two_cpus_get_different_section_hints() {
    large_model(|| {
        let instance = Instance::new(3);
        // The section that is CPU 0's hint has no free pageblock, so both CPUs search.
        let held = [instance.alloc(ONE_BLOCK), instance.alloc(ONE_BLOCK)];
        let other_cpu = instance.spawn_on(1, |instance| instance.alloc(ONE_BLOCK));
        let main_held = instance.alloc(ONE_BLOCK);
        let other_held = other_cpu.join().unwrap();
        let hinted: Vec<_> = instance.call().hinted_sections(Zone::Kernel).collect();
        assert!(hinted.len() < 2 || hinted[0] != hinted[1], "two CPUs have one section as hint");
        [main_held, other_held].into_iter().chain(held).for_each(|held| instance.free(held));
        instance.check_empty();
    });
}

#[test]
fn the_hint_of_a_section_is_replaced_while_a_pageblock_is_freed() {
    model(|| {
        let instance = Instance::new(2);
        let [a, b] = [instance.alloc(ONE_BLOCK), instance.alloc(ONE_BLOCK)];
        let interrupt = instance.spawn_on(0, |instance| instance.free(a));
        let main_held = instance.alloc(ONE_BLOCK);
        interrupt.join().unwrap();
        instance.validate();
        [main_held, b].into_iter().for_each(|held| instance.free(held));
        instance.check_empty();
    });
}

#[test]
fn a_nodes_hint_is_replaced_while_its_last_frames_are_freed() {
    model_preemptions(1, || {
        let instance = Instance::new(1);
        let run = AllocRequest::frames(2).node(NodeChoice::Near(NodeId::ZERO));
        // Pageblock 0 is the node's hint, and all its frames are in use.
        let [a, b] = [instance.alloc(run), instance.alloc(run)];
        let other_thread = instance.spawn_on(1, |instance| {
            instance.free(a);
            instance.free(b);
        });
        let main_held = instance.try_alloc(run);
        other_thread.join().unwrap();
        instance.check();
        main_held.into_iter().for_each(|held| instance.free(held));
        // This fails if a pageblock without a hint stays divided although all its frames are free.
        instance.check_empty();
    });
}
