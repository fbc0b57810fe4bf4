//! Frames of a split pageblock.

use super::machine::{BLOCK, range};
use super::{Machine, model, model_within};
use crate::frames::{AllocError, AllocRequest};

const ONE: AllocRequest = AllocRequest::frames(1);
const TWO: AllocRequest = AllocRequest::frames(2);

#[test]
fn free_meets_allocation() {
    model(|| {
        let machine = Machine::new(1);
        let [held] = machine.singles();
        let other = machine.on_cpu(1, |machine| machine.free(held));
        let mine = machine.alloc(ONE);
        other.join().unwrap();
        machine.free(mine);
        machine.check_empty();
    });
}

#[test]
fn allocations_meet_at_the_last_frame() {
    model(|| {
        let machine = Machine::new(1);
        let _held = machine.singles::<7>();
        let other = machine.on_cpu(1, |machine| machine.try_alloc(ONE).is_ok());
        let mine = machine.try_alloc(ONE).is_ok();
        assert!(mine != other.join().unwrap());
        machine.check();
    });
}

#[test]
fn allocations_meet_in_one_word() {
    model(|| {
        let machine = Machine::new(1);
        let [a] = machine.singles();
        let other = machine.on_cpu(0, |machine| machine.alloc(ONE));
        let mine = machine.alloc(ONE);
        for held in [a, mine, other.join().unwrap()] {
            machine.free(held);
        }
        machine.check_empty();
    });
}

#[test]
fn last_frees_meet() {
    model(|| {
        let machine = Machine::new(1);
        let [a, b, c, d, e] = machine.singles();
        machine.free(a);
        machine.free(b);
        // Pageblock 0 is nobody's hint, pageblock 1 is CPU 0's.
        let other = machine.on_cpu(1, |machine| machine.free(c));
        machine.free(d);
        let mine = machine.try_alloc(AllocRequest::frames(BLOCK));
        other.join().unwrap();
        machine.check();
        mine.into_iter().chain([e]).for_each(|held| machine.free(held));
        machine.check_empty();
    });
}

#[test]
fn last_frees_meet_in_the_hint_of_one() {
    model(|| {
        let machine = Machine::new(1);
        let [a, b] = machine.singles();
        let other = machine.on_cpu(1, |machine| machine.free(a));
        machine.free(b);
        other.join().unwrap();
        machine.check_empty();
    });
}

#[test]
fn last_free_of_an_own_pageblock_meets_an_allocation() {
    model(|| {
        let machine = Machine::new(1);
        let [a] = machine.singles();
        let other = machine.on_cpu(0, |machine| machine.free(a));
        let mine = machine.alloc(ONE);
        other.join().unwrap();
        machine.check();
        machine.free(mine);
        machine.check_empty();
    });
}

#[test]
fn last_free_of_an_own_pageblock_meets_a_whole_allocation() {
    model(|| {
        let machine = Machine::new(1);
        let (a, b) = (machine.alloc(ONE), machine.alloc(AllocRequest::frames(BLOCK)));
        let other = machine.on_cpu(0, |machine| machine.free(a));
        // The other pageblock is in use, so this takes the one that stays split.
        let mine = machine.try_alloc(AllocRequest::frames(BLOCK));
        other.join().unwrap();
        machine.check();
        mine.into_iter().chain([b]).for_each(|held| machine.free(held));
        machine.check_empty();
    });
}

#[test]
fn last_free_meets_a_small_allocation() {
    model(|| {
        let machine = Machine::new(1);
        let [a] = machine.singles();
        let other = machine.on_cpu(1, |machine| machine.free(a));
        let mine = machine.alloc(ONE);
        other.join().unwrap();
        machine.check();
        machine.free(mine);
        machine.check_empty();
    });
}

#[test]
fn coalescing_meets_a_claim() {
    model(|| {
        let machine = Machine::new(1);
        let [a, b] = [machine.alloc(AllocRequest::frames(BLOCK)), machine.alloc(ONE)];
        let other = machine.on_cpu(1, |machine| machine.free(b));
        let mine = machine.try_alloc(AllocRequest::frames(BLOCK));
        other.join().unwrap();
        machine.check();
        mine.into_iter().for_each(|held| machine.free(held));
        machine.free(a);
        machine.check_empty();
    });
}

#[test]
fn coalescing_meets_a_split_that_is_shown() {
    model(|| {
        let machine = Machine::new(1);
        let [a, b, c, d, e] = machine.singles();
        // Pageblock 0 is nobody's hint, in `partial`, and only `a` of it is in use.
        [b, c, d].into_iter().for_each(|held| machine.free(held));
        let of_the_first = ONE.below(range(BLOCK, 1).start());
        let other = machine.on_cpu(1, move |machine| machine.try_alloc(of_the_first));
        machine.free(a);
        let other = other.join().unwrap();
        machine.check();
        other.into_iter().chain([e]).for_each(|held| machine.free(held));
        machine.check_empty();
    });
}

#[test]
fn a_hold_that_is_given_up_meets_an_allocation() {
    model(|| {
        let machine = Machine::new(1);
        // CPU 0's cursor is in the second pageblock.
        let [a, b, c, d, rest @ ..] = machine.singles::<7>();
        [b, c, d].into_iter().for_each(|held| machine.free(held));
        let of_the_first = TWO.below(range(BLOCK, 1).start());
        // The free holds the first word while the allocation takes all of the second one.
        let other = machine.on_cpu(1, |machine| machine.free(a));
        let mine = machine.try_alloc(of_the_first);
        other.join().unwrap();
        machine.check();
        mine.into_iter().chain(rest).for_each(|held| machine.free(held));
        machine.check_empty();
    });
}

#[test]
fn a_hold_that_is_given_up_meets_a_pair() {
    model_within(3, || {
        let machine = Machine::new(1);
        let [a, b, c, d, e] = machine.singles();
        let last = ONE.at(d.range().start());
        [b, c, d].into_iter().for_each(|held| machine.free(held));
        // CPU 0's hint is the second pageblock, and not exhausted. The free holds the first word of
        // the first pageblock, and gives up at the second word.
        let other = machine.on_cpu(1, move |machine| {
            machine.try_alloc(last).into_iter().for_each(|held| machine.free(held));
        });
        machine.free(a);
        other.join().unwrap();
        let whole = machine.alloc(AllocRequest::frames(BLOCK));
        [e, whole].into_iter().for_each(|held| machine.free(held));
        machine.check_empty();
    });
}

#[test]
fn a_free_meets_a_search_that_takes_the_pageblock_out_of_partial() {
    model(|| {
        let machine = Machine::new(1);
        let [a, b, c, d, rest @ ..] = machine.singles::<7>();
        // The first pageblock is in `partial`, though no frame of it is free any more. The second
        // one is CPU 0's hint and has its cursor, and is not exhausted.
        let place = ONE.at(a.range().start());
        machine.free(a);
        let a = machine.alloc(place);
        let other = machine.on_cpu(0, |machine| machine.free(b));
        let of_the_first = TWO.below(range(BLOCK, 1).start());
        assert!(machine.as_cpu(1, |machine| machine.try_alloc(of_the_first)).is_err());
        other.join().unwrap();
        machine.check();
        [a, c, d].into_iter().chain(rest).for_each(|held| machine.free(held));
        machine.check_empty();
    });
}

#[test]
fn splits_meet() {
    model(|| {
        let machine = Machine::new(1);
        let other = machine.on_cpu(1, |machine| machine.alloc(ONE));
        let mine = machine.alloc(ONE);
        let other = other.join().unwrap();
        machine.check();
        machine.free(mine);
        machine.free(other);
        machine.check_empty();
    });
}

#[test]
fn splits_meet_at_the_last_pageblock() {
    model(|| {
        let machine = Machine::new(1);
        let block = machine.alloc(AllocRequest::frames(BLOCK));
        let other = machine.on_cpu(1, |machine| machine.try_alloc(ONE));
        let mine = machine.try_alloc(ONE);
        for got in [mine, other.join().unwrap()] {
            match got {
                Ok(held) => machine.free(held),
                Err(error) => assert_eq!(error, AllocError::Busy),
            }
        }
        machine.free(block);
        machine.check_empty();
    });
}

#[test]
fn a_run_that_is_not_there_meets_a_free() {
    model(|| {
        let machine = Machine::new(1);
        let block = machine.alloc(AllocRequest::frames(BLOCK));
        let [a, b, c, d] = machine.singles();
        // One frame of each word is free, but no run.
        machine.free(b);
        machine.free(d);
        let other = machine.on_cpu(1, |machine| machine.free(a));
        let mine = machine.try_alloc(TWO);
        other.join().unwrap();
        machine.check();
        mine.into_iter().for_each(|held| machine.free(held));
        machine.free(c);
        machine.free(block);
        machine.check_empty();
    });
}

#[test]
fn runs_meet() {
    model(|| {
        let machine = Machine::new(1);
        let block = machine.alloc(AllocRequest::frames(BLOCK));
        let [a] = machine.singles();
        let other = machine.on_cpu(1, |machine| machine.try_alloc(TWO));
        let mine = machine.try_alloc(TWO);
        let other = other.join().unwrap();
        assert!(mine.is_ok() != other.is_ok() || mine.is_err());
        machine.check();
        mine.into_iter().chain(other).chain([a, block]).for_each(|held| machine.free(held));
        machine.check_empty();
    });
}

#[test]
fn parts_of_one_allocation_are_freed_by_two() {
    model(|| {
        let machine = Machine::new(1);
        let (low, high) = machine.split(machine.alloc(AllocRequest::frames(BLOCK)), 1);
        let other = machine.on_cpu(1, |machine| machine.free(low));
        machine.free(high);
        other.join().unwrap();
        machine.check_empty();
    });
}

#[test]
fn double_free_is_refused_once() {
    model(|| {
        let machine = Machine::new(1);
        let [a, _b] = machine.singles();
        let range = a.range();
        let other = machine.on_cpu(1, move |machine| machine.try_free(range).is_ok());
        let mine = machine.try_free(range).is_ok();
        assert!(mine != other.join().unwrap(), "freed twice, or not at all");
        machine.forget(a);
        machine.check();
    });
}

#[test]
fn three_at_one_pageblock() {
    model(|| {
        let machine = Machine::new(1);
        let block = machine.alloc(AllocRequest::frames(BLOCK));
        let [a, b, c] = machine.singles();
        let first = machine.on_cpu(1, |machine| machine.free(a));
        let second = machine.on_cpu(1, |machine| machine.try_alloc(ONE));
        machine.free(b);
        first.join().unwrap();
        let second = second.join().unwrap();
        machine.check();
        second.into_iter().chain([block, c]).for_each(|held| machine.free(held));
        machine.check_empty();
    });
}

#[test]
fn runs_meet_in_one_word() {
    model(|| {
        let machine = Machine::new(1);
        let block = machine.alloc(AllocRequest::frames(BLOCK).at(range(BLOCK, 1).start()));
        let [a] = machine.singles();
        // The hint of either CPU names the divided pageblock.
        let b = machine.as_cpu(1, |machine| machine.alloc(ONE));
        [a, b].into_iter().for_each(|held| machine.free(held));
        let other = machine.on_cpu(1, |machine| machine.alloc_unless_busy(TWO));
        let mine = machine.alloc_unless_busy(TWO);
        let other = other.join().unwrap();
        machine.check();
        let held = mine.into_iter().chain(other).chain([block]);
        held.for_each(|held| machine.free(held));
        machine.check_empty();
    });
}

#[test]
fn a_run_is_freed_while_one_is_taken() {
    model(|| {
        let machine = Machine::new(1);
        let block = machine.alloc(AllocRequest::frames(BLOCK));
        let [a, b] = [machine.alloc(TWO), machine.alloc(TWO)];
        machine.free(b);
        // The allocation may take the frames of `a` while their free is in flight.
        let other = machine.on_cpu(1, |machine| machine.free(a));
        let mine = machine.alloc_unless_busy(TWO);
        other.join().unwrap();
        machine.check();
        mine.into_iter().chain([block]).for_each(|held| machine.free(held));
        machine.check_empty();
    });
}

#[test]
fn a_run_that_partial_does_not_lead_to_meets_an_allocation() {
    model_within(1, || {
        let machine = Machine::new(1);
        let [a, b, c, d, e] = machine.singles();
        // Pageblock 0 is in `partial`, with frames enough, but no run so far down.
        [b, c, d].into_iter().for_each(|held| machine.free(held));
        let below = |request: AllocRequest, pfn| request.below(range(pfn, 1).start());
        let other = machine.on_cpu(1, move |machine| machine.try_alloc(below(TWO, 2)));
        let mine = machine.try_alloc(below(ONE, BLOCK));
        assert!(other.join().unwrap().is_err());
        machine.check();
        mine.into_iter().chain([a, e]).for_each(|held| machine.free(held));
        machine.check_empty();
    });
}

#[test]
fn a_neighbour_comes_into_partial() {
    model(|| {
        let machine = Machine::new(2);
        let held = machine.singles::<11>();
        let [a, b, c, d, e, rest @ ..] = held;
        // CPU 0's hint and its cursor are in the third pageblock, and the first is in `partial`.
        machine.free(a);
        let other = machine.on_cpu(1, |machine| machine.alloc(ONE));
        machine.free(e);
        let other = other.join().unwrap();
        machine.validate();
        [b, c, d, other].into_iter().chain(rest).for_each(|held| machine.free(held));
        machine.validate();
    });
}
