//! Models hints that several threads change. Two threads that run as one CPU stand for a call and
//! an interrupt handler that interrupts it.

use super::machine::{BLOCK, range};
use super::{Machine, large_model, model, model_preemptions};
use crate::frames::AllocRequest;

const ONE_FRAME: AllocRequest = AllocRequest::frames(1);
const ONE_BLOCK: AllocRequest = AllocRequest::frames(BLOCK);

#[test]
fn an_interrupt_allocates_and_frees_on_the_cpu_of_a_call() {
    model(|| {
        let machine = Machine::new(1);
        let [a] = machine.alloc_singles();
        let interrupt = machine.spawn_on(0, |machine| {
            let held = machine.alloc(ONE_FRAME);
            machine.free(held);
        });
        machine.free(a);
        interrupt.join().unwrap();
        machine.check_empty();
    });
}

#[test]
fn two_frees_replace_one_hint() {
    model(|| {
        let machine = Machine::new(1);
        let first @ [_, _, _, _] = machine.alloc_singles();
        let second @ [_, _, _, _] = machine.alloc_singles();
        let [a, b, c, d] = first;
        let [e, f, g, h] = second;
        // All frames of both pageblocks are in use, and pageblock 1 is CPU 0's hint.
        let interrupt = machine.spawn_on(0, |machine| machine.free(a));
        machine.free(e);
        interrupt.join().unwrap();
        machine.check();
        for held in [b, c, d, f, g, h] {
            machine.free(held);
        }
        machine.check_empty();
    });
}

#[test]
fn a_frame_of_an_exhausted_pageblock_is_freed() {
    model(|| {
        let machine = Machine::new(1);
        let block = machine.alloc(ONE_BLOCK);
        let [a, b, c, d] = machine.alloc_singles();
        let other_thread = machine.spawn_on(1, |machine| machine.free(a));
        let mine = machine.try_alloc(ONE_FRAME);
        other_thread.join().unwrap();
        machine.check();
        mine.into_iter().chain([b, c, d, block]).for_each(|held| machine.free(held));
        machine.check_empty();
    });
}

#[test]
fn two_threads_swap_a_hint() {
    model(|| {
        let machine = Machine::new(2);
        let other_thread = machine.spawn_on(0, |machine| machine.alloc(ONE_FRAME));
        let mine = machine.alloc(ONE_FRAME);
        let other = other_thread.join().unwrap();
        machine.check();
        machine.free(mine);
        machine.free(other);
        machine.check_empty();
    });
}

/// A search that starts again reads many old values, so a model of two preemptions would take ten
/// minutes.
#[test]
fn an_old_hint_leads_to_a_pageblock_that_is_divided_again() {
    model_preemptions(1, || {
        let machine = Machine::new(1);
        let block = machine.alloc(ONE_BLOCK.at(range(BLOCK, 1).start()));
        let [a] = machine.run_as(1, Machine::alloc_singles);
        // CPU 0 frees this frame, so the pageblock is coalesced. The pageblock is still CPU 1's
        // hint.
        machine.free(a);
        let other_thread = machine.spawn_on(1, |machine| machine.try_alloc(ONE_FRAME));
        let mine = machine.try_alloc(ONE_FRAME);
        let other = other_thread.join().unwrap();
        machine.check();
        mine.into_iter().chain(other).chain([block]).for_each(|held| machine.free(held));
        machine.check_empty();
    });
}

#[test]
fn two_threads_swap_the_hint_of_a_section() {
    model(|| {
        let machine = Machine::new(2);
        let other_thread =
            machine.spawn_on(0, |machine| [machine.alloc(ONE_BLOCK), machine.alloc(ONE_BLOCK)]);
        let mine = machine.alloc(ONE_BLOCK);
        let other = other_thread.join().unwrap();
        machine.check();
        other.into_iter().chain([mine]).for_each(|held| machine.free(held));
        machine.check_empty();
    });
}

#[test]
fn a_pageblock_of_an_exhausted_section_is_freed() {
    model(|| {
        let machine = Machine::new(2);
        let held: [_; 3] = std::array::from_fn(|_| machine.alloc(ONE_BLOCK));
        let [a, b, c] = held;
        let other_thread = machine.spawn_on(1, |machine| machine.free(a));
        let last = machine.alloc(ONE_BLOCK);
        let mine = machine.try_alloc(ONE_BLOCK);
        other_thread.join().unwrap();
        machine.check();
        mine.into_iter().chain([b, c, last]).for_each(|held| machine.free(held));
        machine.check_empty();
    });
}

#[test]
fn the_last_frame_of_a_hint_is_freed_while_the_hint_is_replaced() {
    model(|| {
        let machine = Machine::new(1);
        let [a, b, c, d] = machine.alloc_singles();
        for held in [b, c, d] {
            machine.free(held);
        }
        // Pageblock 0 is CPU 0's hint, and all its frames except `a` are free. The interrupt makes
        // pageblock 1 the hint, so either the interrupt or the free must coalesce pageblock 0.
        let interrupt = machine.spawn_on(0, |machine| {
            let rest = machine.alloc(AllocRequest::frames(3));
            machine.free(rest);
        });
        machine.free(a);
        interrupt.join().unwrap();
        machine.check_empty();
    });
}

#[test]
fn a_whole_allocation_takes_a_free_pageblock_that_stays_divided() {
    model(|| {
        let machine = Machine::new(1);
        let rest = machine.alloc(ONE_BLOCK.at(range(BLOCK, 1).start()));
        // The pageblock is wholly free, and stays divided because it is CPU 0's hint.
        let [a] = machine.alloc_singles();
        machine.free(a);
        let other_thread = machine.spawn_on(1, |machine| machine.try_alloc(ONE_BLOCK));
        let mine = machine.try_alloc(ONE_FRAME);
        let other = other_thread.join().unwrap();
        assert!(mine.is_ok() != other.is_ok());
        machine.check();
        mine.into_iter().chain(other).chain([rest]).for_each(|held| machine.free(held));
        machine.check_empty();
    });
}

#[test]
fn a_run_of_pageblocks_takes_a_free_pageblock_that_stays_divided() {
    large_model(1, 3, || {
        let machine = Machine::new(1);
        let [a] = machine.alloc_singles();
        machine.free(a);
        let other_thread =
            machine.spawn_on(1, |machine| machine.try_alloc(AllocRequest::frames(2 * BLOCK)));
        let mine = machine.try_alloc(ONE_FRAME);
        let other = other_thread.join().unwrap();
        assert!(mine.is_ok() || other.is_ok());
        machine.check();
        mine.into_iter().chain(other).for_each(|held| machine.free(held));
        machine.check_empty();
    });
}

#[test]
fn two_threads_with_one_cpu_number_adopt_sections() {
    model(|| {
        let machine = Machine::new(3);
        // The section that is CPU 0's hint has no free pageblock.
        let held = [machine.alloc(ONE_BLOCK), machine.alloc(ONE_BLOCK)];
        let interrupt = machine.spawn_on(0, |machine| machine.alloc(ONE_BLOCK));
        let mine = machine.alloc(ONE_BLOCK);
        let other = interrupt.join().unwrap();
        machine.validate();
        [mine, other].into_iter().chain(held).for_each(|held| machine.free(held));
        machine.validate();
    });
}

#[test]
fn the_hint_of_a_section_is_replaced_while_a_pageblock_is_freed() {
    model(|| {
        let machine = Machine::new(2);
        let [a, b] = [machine.alloc(ONE_BLOCK), machine.alloc(ONE_BLOCK)];
        let interrupt = machine.spawn_on(0, |machine| machine.free(a));
        let mine = machine.alloc(ONE_BLOCK);
        interrupt.join().unwrap();
        machine.validate();
        [mine, b].into_iter().for_each(|held| machine.free(held));
        machine.check_empty();
    });
}
