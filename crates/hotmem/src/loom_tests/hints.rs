//! What CPUs try next: hints that change hands, and two threads under one CPU number, as when an
//! interrupt comes on top of its owner.

use super::machine::{BLOCK, range};
use super::{Machine, model, model_within};
use crate::frames::AllocRequest;

const ONE: AllocRequest = AllocRequest::frames(1);
const WHOLE: AllocRequest = AllocRequest::frames(BLOCK);

#[test]
fn one_cpu_allocates_and_frees_on_top_of_itself() {
    model(|| {
        let machine = Machine::new(1);
        let [a] = machine.singles();
        let interrupt = machine.on_cpu(0, |machine| {
            let held = machine.alloc(ONE);
            machine.free(held);
        });
        machine.free(a);
        interrupt.join().unwrap();
        machine.check_empty();
    });
}

#[test]
fn a_hint_is_swapped_out_while_it_fills() {
    model(|| {
        let machine = Machine::new(1);
        let first @ [_, _, _, _] = machine.singles();
        let second @ [_, _, _, _] = machine.singles();
        let [a, b, c, d] = first;
        let [e, f, g, h] = second;
        // Both pageblocks are exhausted, and pageblock 1 is CPU 0's hint.
        let interrupt = machine.on_cpu(0, |machine| machine.free(a));
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
fn an_exhausted_pageblock_gets_a_frame_back() {
    model(|| {
        let machine = Machine::new(1);
        let block = machine.alloc(WHOLE);
        let [a, b, c, d] = machine.singles();
        let other = machine.on_cpu(1, |machine| machine.free(a));
        let mine = machine.try_alloc(ONE);
        other.join().unwrap();
        machine.check();
        mine.into_iter().chain([b, c, d, block]).for_each(|held| machine.free(held));
        machine.check_empty();
    });
}

#[test]
fn hints_are_swapped_by_two() {
    model(|| {
        let machine = Machine::new(2);
        let other = machine.on_cpu(0, |machine| machine.alloc(ONE));
        let mine = machine.alloc(ONE);
        let other = other.join().unwrap();
        machine.check();
        machine.free(mine);
        machine.free(other);
        machine.check_empty();
    });
}

/// Searches that begin again read many old values; a second preemption takes ten minutes.
#[test]
fn an_old_hint_names_what_is_split_again() {
    model_within(1, || {
        let machine = Machine::new(1);
        let block = machine.alloc(WHOLE.at(range(BLOCK, 1).start()));
        let [a] = machine.as_cpu(1, Machine::singles);
        // Freed from CPU 0, so it is coalesced; CPU 1 still takes it for its own.
        machine.free(a);
        let other = machine.on_cpu(1, |machine| machine.try_alloc(ONE));
        let mine = machine.try_alloc(ONE);
        let other = other.join().unwrap();
        machine.check();
        mine.into_iter().chain(other).chain([block]).for_each(|held| machine.free(held));
        machine.check_empty();
    });
}

#[test]
fn sections_are_swapped_by_two() {
    model(|| {
        let machine = Machine::new(2);
        let other = machine.on_cpu(0, |machine| [machine.alloc(WHOLE), machine.alloc(WHOLE)]);
        let mine = machine.alloc(WHOLE);
        let other = other.join().unwrap();
        machine.check();
        other.into_iter().chain([mine]).for_each(|held| machine.free(held));
        machine.check_empty();
    });
}

#[test]
fn an_exhausted_section_gets_a_pageblock_back() {
    model(|| {
        let machine = Machine::new(2);
        let held: [_; 3] = std::array::from_fn(|_| machine.alloc(WHOLE));
        let [a, b, c] = held;
        let other = machine.on_cpu(1, |machine| machine.free(a));
        let last = machine.alloc(WHOLE);
        let mine = machine.try_alloc(WHOLE);
        other.join().unwrap();
        machine.check();
        mine.into_iter().chain([b, c, last]).for_each(|held| machine.free(held));
        machine.check_empty();
    });
}

#[test]
fn the_last_frame_of_a_hint_comes_back_while_the_hint_moves_on() {
    model(|| {
        let machine = Machine::new(1);
        let [a, b, c, d] = machine.singles();
        for held in [b, c, d] {
            machine.free(held);
        }
        // Pageblock 0 is CPU 0's hint and is all free but for `a`. CPU 0 goes on to pageblock 1
        // in an interrupt: what is in the hint must be coalesced by the one or the other.
        let interrupt = machine.on_cpu(0, |machine| {
            let rest = machine.alloc(AllocRequest::frames(3));
            machine.free(rest);
        });
        machine.free(a);
        interrupt.join().unwrap();
        machine.check_empty();
    });
}

#[test]
fn a_whole_allocation_takes_what_stays_split() {
    model(|| {
        let machine = Machine::new(1);
        let rest = machine.alloc(WHOLE.at(range(BLOCK, 1).start()));
        // Wholly free, and split as CPU 0's hint.
        let [a] = machine.singles();
        machine.free(a);
        let other = machine.on_cpu(1, |machine| machine.try_alloc(WHOLE));
        let mine = machine.try_alloc(ONE);
        let other = other.join().unwrap();
        assert!(mine.is_ok() != other.is_ok());
        machine.check();
        mine.into_iter().chain(other).chain([rest]).for_each(|held| machine.free(held));
        machine.check_empty();
    });
}

#[test]
fn a_run_of_pageblocks_takes_what_stays_split() {
    model(|| {
        let machine = Machine::new(1);
        let [a] = machine.singles();
        machine.free(a);
        let other = machine.on_cpu(1, |machine| machine.try_alloc(AllocRequest::frames(2 * BLOCK)));
        let mine = machine.try_alloc(ONE);
        let other = other.join().unwrap();
        assert!(mine.is_ok() || other.is_ok());
        machine.check();
        mine.into_iter().chain(other).for_each(|held| machine.free(held));
        machine.check_empty();
    });
}

#[test]
fn two_adopt_sections_under_one_number() {
    model(|| {
        let machine = Machine::new(3);
        // CPU 0's section is exhausted.
        let held = [machine.alloc(WHOLE), machine.alloc(WHOLE)];
        let interrupt = machine.on_cpu(0, |machine| machine.alloc(WHOLE));
        let mine = machine.alloc(WHOLE);
        let other = interrupt.join().unwrap();
        machine.validate();
        [mine, other].into_iter().chain(held).for_each(|held| machine.free(held));
        machine.validate();
    });
}

#[test]
fn a_section_is_swapped_out_while_it_fills() {
    model(|| {
        let machine = Machine::new(2);
        let [a, b] = [machine.alloc(WHOLE), machine.alloc(WHOLE)];
        let interrupt = machine.on_cpu(0, |machine| machine.free(a));
        let mine = machine.alloc(WHOLE);
        interrupt.join().unwrap();
        machine.validate();
        [mine, b].into_iter().for_each(|held| machine.free(held));
        machine.check_empty();
    });
}
