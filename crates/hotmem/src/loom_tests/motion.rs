//! Checks that an allocation does not fail as "out of memory" if enough frames are free all the
//! time, even if other operations hide them for a moment.

use super::machine::{BLOCK, Held, range};
use super::{Machine, large_model, model, model_preemptions};
use crate::frames::{AllocError, AllocRequest};
use crate::range_error::{RangeError, RangeErrorKind};
use std::sync::Arc;

const ONE_FRAME: AllocRequest = AllocRequest::frames(1);
const ONE_BLOCK: AllocRequest = AllocRequest::frames(BLOCK);

/// Allocates and frees `request`, for which enough frames are free all the time. The allocation may
/// fail as "busy", but not as "out of memory".
fn check_not_out_of_memory(machine: &Machine, request: AllocRequest) {
    match machine.try_alloc(request) {
        Ok(held) => machine.free(held),
        Err(error) => assert_eq!(error, AllocError::Busy),
    }
}

#[test]
fn two_cpus_allocate_one_of_two_frames_each() {
    model(|| {
        let machine = Machine::new(1);
        let held = machine.alloc_singles::<6>();
        let other_thread =
            machine.spawn_on(1, |machine| check_not_out_of_memory(machine, ONE_FRAME));
        check_not_out_of_memory(&machine, ONE_FRAME);
        other_thread.join().unwrap();
        held.into_iter().for_each(|held| machine.free(held));
        machine.check_empty();
    });
}

#[test]
fn two_cpus_split_one_of_two_pageblocks_each() {
    model(|| {
        let machine = Machine::new(1);
        let other_thread =
            machine.spawn_on(1, |machine| check_not_out_of_memory(machine, ONE_FRAME));
        check_not_out_of_memory(&machine, ONE_FRAME);
        other_thread.join().unwrap();
        machine.check_empty();
    });
}

#[test]
fn the_rest_of_a_whole_allocation_is_given_back_during_another() {
    model(|| {
        let machine = Machine::new(1);
        let other_thread = machine.spawn_on(1, |machine| {
            check_not_out_of_memory(machine, AllocRequest::frames(BLOCK - 1))
        });
        check_not_out_of_memory(&machine, AllocRequest::frames(BLOCK - 1));
        other_thread.join().unwrap();
        machine.check_empty();
    });
}

#[test]
fn a_last_free_races_with_an_allocation() {
    model(|| {
        let machine = Machine::new(1);
        let block = machine.alloc(ONE_BLOCK);
        let [a] = machine.alloc_singles();
        // Three frames of the pageblock are free all the time, whether it is coalesced or not.
        let other_thread = machine.spawn_on(1, |machine| machine.free(a));
        check_not_out_of_memory(&machine, ONE_FRAME);
        other_thread.join().unwrap();
        machine.free(block);
        machine.check_empty();
    });
}

#[test]
fn a_search_for_a_run_fails_during_an_allocation() {
    model_preemptions(1, || {
        let machine = Machine::new(1);
        let block = machine.alloc(ONE_BLOCK);
        let [a, b, c, d] = machine.alloc_singles();
        machine.free(b);
        machine.free(d);
        let other_thread = machine.spawn_on(1, |machine| {
            let nowhere = machine.try_alloc(AllocRequest::frames(2));
            assert!(nowhere.is_err());
        });
        check_not_out_of_memory(&machine, ONE_FRAME);
        other_thread.join().unwrap();
        [a, c, block].into_iter().for_each(|held| machine.free(held));
        machine.check_empty();
    });
}

#[test]
fn a_claim_over_sections_fails_during_an_allocation() {
    model(|| {
        let machine = Machine::new(2);
        let last = machine.alloc(ONE_BLOCK.at(range(3 * BLOCK, 1).start()));
        let other_thread =
            machine.spawn_on(1, |machine| check_not_out_of_memory(machine, ONE_BLOCK));
        assert!(machine.try_alloc(AllocRequest::frames(4 * BLOCK)).is_err());
        other_thread.join().unwrap();
        machine.free(last);
        machine.check_empty();
    });
}

#[test]
fn a_release_races_with_an_allocation() {
    model(|| {
        let machine = Machine::new(1);
        let [a] = machine.alloc_singles();
        let token = machine.isolate_range(range(BLOCK, BLOCK)).unwrap();
        let other_thread =
            machine.spawn_on(1, |machine| check_not_out_of_memory(machine, ONE_FRAME));
        token.release();
        other_thread.join().unwrap();
        machine.free(a);
        machine.check_empty();
    });
}

#[test]
fn an_isolation_fails_during_an_allocation() {
    model(|| {
        let machine = Machine::new(1);
        let first = machine.isolate_range(range(BLOCK, BLOCK)).unwrap();
        let other_thread =
            machine.spawn_on(1, |machine| check_not_out_of_memory(machine, ONE_FRAME));
        let held = RangeError { range: range(BLOCK, BLOCK), kind: RangeErrorKind::Isolated };
        match machine.isolate_range(range(0, 2 * BLOCK)) {
            Ok(_) => unreachable!("a pageblock was isolated by two tokens"),
            Err(error) => assert!(
                matches!(error, RangeError { kind: RangeErrorKind::Busy, .. }) || error == held
            ),
        }
        other_thread.join().unwrap();
        first.release();
        machine.check_empty();
    });
}

#[test]
fn a_request_for_an_exact_place_fails_during_an_allocation() {
    model_preemptions(1, || {
        let machine = Machine::new(1);
        let second = ONE_BLOCK.at(range(BLOCK, 1).start());
        let first_two = AllocRequest::frames(2 * BLOCK).at(range(0, 1).start());
        let rival = machine.spawn_on(0, move |machine| machine.try_alloc(second).ok());
        let taker = machine.spawn_on(1, |machine| machine.try_alloc(ONE_BLOCK));
        let mine = machine.try_alloc(first_two).ok();
        let (rival, taker) = (rival.join().unwrap(), taker.join().unwrap());
        if mine.is_none() {
            // The request for both pageblocks failed, so the first pageblock was free all the time.
            assert!(!matches!(taker, Err(AllocError::OutOfMemory)));
        }
        mine.into_iter().chain(rival).chain(taker).for_each(|held| machine.free(held));
        machine.check_empty();
    });
}

/// Makes a machine in which only the last frame of the first pageblock is free. The first pageblock
/// is CPU 0's hint.
fn nearly_full() -> (Arc<Machine>, [Held; 4]) {
    let machine = Machine::new(1);
    let block = machine.alloc(ONE_BLOCK.at(range(BLOCK, 1).start()));
    let [a, b, c, last] = machine.alloc_singles();
    machine.free(last);
    (machine, [block, a, b, c])
}

#[test]
fn a_frame_is_freed_and_another_taken_where_a_search_has_been() {
    model(|| {
        let (machine, [block, a, b, c]) = nearly_full();
        let other_thread = machine.spawn_on(1, |machine| machine.alloc_unless_busy(ONE_FRAME));
        machine.free(a);
        let mine = machine.alloc_unless_busy(ONE_FRAME);
        let other = other_thread.join().unwrap();
        machine.check();
        mine.into_iter().chain(other).chain([block, b, c]).for_each(|held| machine.free(held));
        machine.check_empty();
    });
}

/// Another free of a frame of the same word is in flight, so the word may have a free frame
/// already.
#[test]
fn a_second_frame_of_a_word_is_freed_where_a_search_has_been() {
    large_model(1, 3, || {
        let (machine, [block, a, b, c]) = nearly_full();
        let slow = machine.spawn_on(0, |machine| machine.free(a));
        let other_thread = machine.spawn_on(0, |machine| {
            machine.free(b);
            machine.alloc_unless_busy(ONE_FRAME)
        });
        let mine = machine.run_as(1, |machine| machine.alloc_unless_busy(ONE_FRAME));
        slow.join().unwrap();
        let other = other_thread.join().unwrap();
        machine.check();
        mine.into_iter().chain(other).chain([block, c]).for_each(|held| machine.free(held));
        machine.check_empty();
    });
}
