//! Models allocations and frees of frames of divided pageblocks.

use super::machine::{BLOCK, range};
use super::{Machine, large_model, model, model_preemptions};
use crate::frames::{AllocError, AllocRequest};

const ONE_FRAME: AllocRequest = AllocRequest::frames(1);
const TWO: AllocRequest = AllocRequest::frames(2);

#[test]
fn free_races_with_allocation() {
    model(|| {
        let machine = Machine::new(1);
        let [held] = machine.alloc_singles();
        let other_thread = machine.spawn_on(1, |machine| machine.free(held));
        let mine = machine.alloc(ONE_FRAME);
        other_thread.join().unwrap();
        machine.free(mine);
        machine.check_empty();
    });
}

#[test]
fn allocations_race_for_the_last_frame() {
    model(|| {
        let machine = Machine::new(1);
        let _held = machine.alloc_singles::<7>();
        let other_thread = machine.spawn_on(1, |machine| machine.try_alloc(ONE_FRAME).is_ok());
        let mine = machine.try_alloc(ONE_FRAME).is_ok();
        assert!(mine != other_thread.join().unwrap());
        machine.check();
    });
}

#[test]
fn allocations_race_in_one_word() {
    model(|| {
        let machine = Machine::new(1);
        let [a] = machine.alloc_singles();
        let other_thread = machine.spawn_on(0, |machine| machine.alloc(ONE_FRAME));
        let mine = machine.alloc(ONE_FRAME);
        for held in [a, mine, other_thread.join().unwrap()] {
            machine.free(held);
        }
        machine.check_empty();
    });
}

#[test]
fn last_frees_race() {
    model(|| {
        let machine = Machine::new(1);
        let [a, b, c, d, e] = machine.alloc_singles();
        machine.free(a);
        machine.free(b);
        // Pageblock 1 is CPU 0's hint, and pageblock 0 is no hint.
        let other_thread = machine.spawn_on(1, |machine| machine.free(c));
        machine.free(d);
        let mine = machine.try_alloc(AllocRequest::frames(BLOCK));
        other_thread.join().unwrap();
        machine.check();
        mine.into_iter().chain([e]).for_each(|held| machine.free(held));
        machine.check_empty();
    });
}

#[test]
fn last_frees_race_in_the_hint_of_one_cpu() {
    model(|| {
        let machine = Machine::new(1);
        let [a, b] = machine.alloc_singles();
        let other_thread = machine.spawn_on(1, |machine| machine.free(a));
        machine.free(b);
        other_thread.join().unwrap();
        machine.check_empty();
    });
}

#[test]
fn last_free_in_a_hint_races_with_an_allocation() {
    model(|| {
        let machine = Machine::new(1);
        let [a] = machine.alloc_singles();
        let other_thread = machine.spawn_on(0, |machine| machine.free(a));
        let mine = machine.alloc(ONE_FRAME);
        other_thread.join().unwrap();
        machine.check();
        machine.free(mine);
        machine.check_empty();
    });
}

#[test]
fn last_free_in_a_hint_races_with_a_whole_allocation() {
    model(|| {
        let machine = Machine::new(1);
        let (a, b) = (machine.alloc(ONE_FRAME), machine.alloc(AllocRequest::frames(BLOCK)));
        let other_thread = machine.spawn_on(0, |machine| machine.free(a));
        // The other pageblock is in use, so this allocation can only take the pageblock that stays
        // divided.
        let mine = machine.try_alloc(AllocRequest::frames(BLOCK));
        other_thread.join().unwrap();
        machine.check();
        mine.into_iter().chain([b]).for_each(|held| machine.free(held));
        machine.check_empty();
    });
}

#[test]
fn last_free_races_with_a_small_allocation() {
    model(|| {
        let machine = Machine::new(1);
        let [a] = machine.alloc_singles();
        let other_thread = machine.spawn_on(1, |machine| machine.free(a));
        let mine = machine.alloc(ONE_FRAME);
        other_thread.join().unwrap();
        machine.check();
        machine.free(mine);
        machine.check_empty();
    });
}

#[test]
fn coalescing_races_with_a_claim() {
    model(|| {
        let machine = Machine::new(1);
        let [a, b] = [machine.alloc(AllocRequest::frames(BLOCK)), machine.alloc(ONE_FRAME)];
        let other_thread = machine.spawn_on(1, |machine| machine.free(b));
        let mine = machine.try_alloc(AllocRequest::frames(BLOCK));
        other_thread.join().unwrap();
        machine.check();
        mine.into_iter().for_each(|held| machine.free(held));
        machine.free(a);
        machine.check_empty();
    });
}

#[test]
fn coalescing_races_with_a_division_that_becomes_findable() {
    model(|| {
        let machine = Machine::new(1);
        let [a, b, c, d, e] = machine.alloc_singles();
        // Pageblock 0 is no hint. Its bit in `partial` is set, and `a` is its only frame in use.
        [b, c, d].into_iter().for_each(|held| machine.free(held));
        let of_the_first = ONE_FRAME.within(..range(BLOCK, 1).start());
        let other_thread = machine.spawn_on(1, move |machine| machine.try_alloc(of_the_first));
        machine.free(a);
        let other = other_thread.join().unwrap();
        machine.check();
        other.into_iter().chain([e]).for_each(|held| machine.free(held));
        machine.check_empty();
    });
}

#[test]
fn a_hold_that_is_ended_races_with_an_allocation() {
    model(|| {
        let machine = Machine::new(1);
        // CPU 0's cursor points to a word of the second pageblock.
        let [a, b, c, d, rest @ ..] = machine.alloc_singles::<7>();
        [b, c, d].into_iter().for_each(|held| machine.free(held));
        let of_the_first = TWO.within(..range(BLOCK, 1).start());
        // The free may hold the first word while the allocation takes both frames of the second
        // word.
        let other_thread = machine.spawn_on(1, |machine| machine.free(a));
        let mine = machine.try_alloc(of_the_first);
        other_thread.join().unwrap();
        machine.check();
        mine.into_iter().chain(rest).for_each(|held| machine.free(held));
        machine.check_empty();
    });
}

#[test]
fn a_hold_that_is_ended_races_with_an_allocation_and_its_free() {
    large_model(2, 4, || {
        let machine = Machine::new(1);
        let [a, b, c, d, e] = machine.alloc_singles();
        let last = ONE_FRAME.at(d.range().start());
        [b, c, d].into_iter().for_each(|held| machine.free(held));
        // The second pageblock is CPU 0's hint, and has free frames. The free may hold the first
        // word of the first pageblock, and give up at the second word.
        let other_thread = machine.spawn_on(1, move |machine| {
            machine.try_alloc(last).into_iter().for_each(|held| machine.free(held));
        });
        machine.free(a);
        other_thread.join().unwrap();
        let whole = machine.alloc(AllocRequest::frames(BLOCK));
        [e, whole].into_iter().for_each(|held| machine.free(held));
        machine.check_empty();
    });
}

#[test]
fn a_free_races_with_a_search_that_takes_the_pageblock_out_of_partial() {
    model(|| {
        let machine = Machine::new(1);
        let [a, b, c, d, rest @ ..] = machine.alloc_singles::<7>();
        // The bit of the first pageblock in `partial` is set, though no frame of it is free any
        // more. The second pageblock has free frames. It is CPU 0's hint, and CPU 0's cursor points
        // to a word of it.
        let place = ONE_FRAME.at(a.range().start());
        machine.free(a);
        let a = machine.alloc(place);
        let other_thread = machine.spawn_on(0, |machine| machine.free(b));
        let of_the_first = TWO.within(..range(BLOCK, 1).start());
        assert!(machine.run_as(1, |machine| machine.try_alloc(of_the_first)).is_err());
        other_thread.join().unwrap();
        machine.check();
        [a, c, d].into_iter().chain(rest).for_each(|held| machine.free(held));
        machine.check_empty();
    });
}

#[test]
fn splits_race() {
    model(|| {
        let machine = Machine::new(1);
        let other_thread = machine.spawn_on(1, |machine| machine.alloc(ONE_FRAME));
        let mine = machine.alloc(ONE_FRAME);
        let other = other_thread.join().unwrap();
        machine.check();
        machine.free(mine);
        machine.free(other);
        machine.check_empty();
    });
}

#[test]
fn divisions_race_for_the_last_pageblock() {
    model(|| {
        let machine = Machine::new(1);
        let block = machine.alloc(AllocRequest::frames(BLOCK));
        let other_thread = machine.spawn_on(1, |machine| machine.try_alloc(ONE_FRAME));
        let mine = machine.try_alloc(ONE_FRAME);
        for result in [mine, other_thread.join().unwrap()] {
            match result {
                Ok(held) => machine.free(held),
                Err(error) => assert_eq!(error, AllocError::Busy),
            }
        }
        machine.free(block);
        machine.check_empty();
    });
}

#[test]
fn a_search_for_a_missing_run_races_with_a_free() {
    model(|| {
        let machine = Machine::new(1);
        let block = machine.alloc(AllocRequest::frames(BLOCK));
        let [a, b, c, d] = machine.alloc_singles();
        // One frame of each word is free, but no run of two frames.
        machine.free(b);
        machine.free(d);
        let other_thread = machine.spawn_on(1, |machine| machine.free(a));
        let mine = machine.try_alloc(TWO);
        other_thread.join().unwrap();
        machine.check();
        mine.into_iter().for_each(|held| machine.free(held));
        machine.free(c);
        machine.free(block);
        machine.check_empty();
    });
}

#[test]
fn runs_race() {
    model(|| {
        let machine = Machine::new(1);
        let block = machine.alloc(AllocRequest::frames(BLOCK));
        let [a] = machine.alloc_singles();
        let other_thread = machine.spawn_on(1, |machine| machine.try_alloc(TWO));
        let mine = machine.try_alloc(TWO);
        let other = other_thread.join().unwrap();
        assert!(mine.is_ok() != other.is_ok() || mine.is_err());
        machine.check();
        mine.into_iter().chain(other).chain([a, block]).for_each(|held| machine.free(held));
        machine.check_empty();
    });
}

#[test]
fn two_cpus_free_parts_of_one_allocation() {
    large_model(1, 3, || {
        let machine = Machine::new(1);
        let (low, high) = machine.split(machine.alloc(AllocRequest::frames(BLOCK)), 1);
        let other_thread = machine.spawn_on(1, |machine| machine.free(low));
        machine.free(high);
        other_thread.join().unwrap();
        machine.check_empty();
    });
}

#[test]
fn double_free_is_refused_once() {
    model(|| {
        let machine = Machine::new(1);
        let [a, _b] = machine.alloc_singles();
        let range = a.range();
        let other_thread = machine.spawn_on(1, move |machine| machine.try_free(range).is_ok());
        let mine = machine.try_free(range).is_ok();
        assert!(
            mine != other_thread.join().unwrap(),
            "exactly one of two frees of the same frame succeeds"
        );
        machine.forget_held(a);
        machine.check();
    });
}

#[test]
fn three_threads_use_one_pageblock() {
    large_model(1, 3, || {
        let machine = Machine::new(1);
        let block = machine.alloc(AllocRequest::frames(BLOCK));
        let [a, b, c] = machine.alloc_singles();
        let first = machine.spawn_on(1, |machine| machine.free(a));
        let second = machine.spawn_on(1, |machine| machine.try_alloc(ONE_FRAME));
        machine.free(b);
        first.join().unwrap();
        let second = second.join().unwrap();
        machine.check();
        second.into_iter().chain([block, c]).for_each(|held| machine.free(held));
        machine.check_empty();
    });
}

#[test]
fn runs_race_in_one_word() {
    large_model(1, 3, || {
        let machine = Machine::new(1);
        let block = machine.alloc(AllocRequest::frames(BLOCK).at(range(BLOCK, 1).start()));
        let [a] = machine.alloc_singles();
        // The divided pageblock is the hint of both CPUs.
        let b = machine.run_as(1, |machine| machine.alloc(ONE_FRAME));
        [a, b].into_iter().for_each(|held| machine.free(held));
        let other_thread = machine.spawn_on(1, |machine| machine.alloc_unless_busy(TWO));
        let mine = machine.alloc_unless_busy(TWO);
        let other = other_thread.join().unwrap();
        machine.check();
        let held = mine.into_iter().chain(other).chain([block]);
        held.for_each(|held| machine.free(held));
        machine.check_empty();
    });
}

#[test]
fn a_run_is_freed_while_another_is_taken() {
    model(|| {
        let machine = Machine::new(1);
        let block = machine.alloc(AllocRequest::frames(BLOCK));
        let [a, b] = [machine.alloc(TWO), machine.alloc(TWO)];
        machine.free(b);
        // The allocation may take the frames of `a` while their free is in flight.
        let other_thread = machine.spawn_on(1, |machine| machine.free(a));
        let mine = machine.alloc_unless_busy(TWO);
        other_thread.join().unwrap();
        machine.check();
        mine.into_iter().chain([block]).for_each(|held| machine.free(held));
        machine.check_empty();
    });
}

#[test]
fn a_search_without_a_suitable_run_races_with_an_allocation() {
    model_preemptions(1, || {
        let machine = Machine::new(1);
        let [a, b, c, d, e] = machine.alloc_singles();
        // The bit of pageblock 0 in `partial` is set. The pageblock has enough free frames, but no
        // run of free frames below the bound of the request.
        [b, c, d].into_iter().for_each(|held| machine.free(held));
        let below = |request: AllocRequest, pfn| request.within(..range(pfn, 1).start());
        let other_thread = machine.spawn_on(1, move |machine| machine.try_alloc(below(TWO, 2)));
        let mine = machine.try_alloc(below(ONE_FRAME, BLOCK));
        assert!(other_thread.join().unwrap().is_err());
        machine.check();
        mine.into_iter().chain([a, e]).for_each(|held| machine.free(held));
        machine.check_empty();
    });
}

#[test]
fn the_partial_bit_of_a_neighbour_is_set_during_a_search() {
    model(|| {
        let machine = Machine::new(2);
        let held = machine.alloc_singles::<11>();
        let [a, b, c, d, e, rest @ ..] = held;
        // The third pageblock is CPU 0's hint, and CPU 0's cursor points to a word of it. The bit
        // of the first pageblock in `partial` is set.
        machine.free(a);
        let other_thread = machine.spawn_on(1, |machine| machine.alloc(ONE_FRAME));
        machine.free(e);
        let other = other_thread.join().unwrap();
        machine.validate();
        [b, c, d, other].into_iter().chain(rest).for_each(|held| machine.free(held));
        machine.validate();
    });
}
