//! Models allocations and frees of whole pageblocks and of runs of pageblocks, and allocations at
//! exact places.

use super::machine::{BLOCK, Held, SECTION, range};
use super::{Machine, model};
use crate::frames::{AllocError, AllocRequest};

const ONE_FRAME: AllocRequest = AllocRequest::frames(1);
const ONE_BLOCK: AllocRequest = AllocRequest::frames(BLOCK);

#[test]
fn whole_allocations_race() {
    model(|| {
        let machine = Machine::new(1);
        let other_thread = machine.spawn_on(1, |machine| machine.alloc(ONE_BLOCK));
        let mine = machine.alloc(ONE_BLOCK);
        let other = other_thread.join().unwrap();
        machine.check();
        machine.free(mine);
        machine.free(other);
        machine.check_empty();
    });
}

#[test]
fn whole_allocations_race_for_the_last_pageblock() {
    model(|| {
        let machine = Machine::new(1);
        let block = machine.alloc(ONE_BLOCK);
        let other_thread = machine.spawn_on(1, |machine| machine.try_alloc(ONE_BLOCK).ok());
        let mine = machine.try_alloc(ONE_BLOCK).ok();
        let other = other_thread.join().unwrap();
        assert!(mine.is_some() != other.is_some());
        mine.into_iter().chain(other).chain([block]).for_each(|held| machine.free(held));
        machine.check_empty();
    });
}

#[test]
fn whole_frees_race() {
    model(|| {
        let machine = Machine::new(1);
        let [a, b] = [machine.alloc(ONE_BLOCK), machine.alloc(ONE_BLOCK)];
        let other_thread = machine.spawn_on(1, |machine| machine.free(a));
        machine.free(b);
        other_thread.join().unwrap();
        machine.check_empty();
    });
}

#[test]
fn whole_frees_beside_a_free_pageblock_race() {
    model(|| {
        let machine = Machine::new(1);
        let [a, b] = [machine.alloc(ONE_BLOCK), machine.alloc(ONE_BLOCK)];
        let other_thread = machine.spawn_on(1, |machine| {
            machine.free(a);
            let again = machine.alloc(ONE_BLOCK);
            machine.free(again);
        });
        machine.free(b);
        other_thread.join().unwrap();
        machine.check_empty();
    });
}

#[test]
fn whole_free_races_with_a_whole_allocation() {
    model(|| {
        let machine = Machine::new(1);
        let [a, b] = [machine.alloc(ONE_BLOCK), machine.alloc(ONE_BLOCK)];
        let other_thread = machine.spawn_on(1, |machine| machine.free(a));
        let mine = machine.try_alloc(ONE_BLOCK);
        other_thread.join().unwrap();
        machine.check();
        mine.into_iter().chain([b]).for_each(|held| machine.free(held));
        machine.check_empty();
    });
}

#[test]
fn a_pageblock_is_freed_beside_a_free_one() {
    model(|| {
        let machine = Machine::new(1);
        let a = machine.alloc(ONE_BLOCK);
        let other_thread = machine.spawn_on(1, |machine| machine.free(a));
        let mine = machine.alloc(ONE_BLOCK);
        other_thread.join().unwrap();
        machine.free(mine);
        machine.check_empty();
    });
}

#[test]
fn pairs_of_a_whole_allocation_and_its_free_race() {
    model(|| {
        let machine = Machine::new(1);
        let block = machine.alloc(ONE_BLOCK);
        let other_thread = machine.spawn_on(1, |machine| {
            let mine = machine.try_alloc(ONE_BLOCK);
            mine.into_iter().for_each(|held| machine.free(held));
        });
        let mine = machine.try_alloc(ONE_BLOCK);
        mine.into_iter().for_each(|held| machine.free(held));
        other_thread.join().unwrap();
        machine.free(block);
        machine.check_empty();
    });
}

#[test]
fn a_claim_over_two_sections_is_undone() {
    model(|| {
        let machine = Machine::new(2);
        let other_thread = machine.spawn_on(1, |machine| machine.try_alloc(ONE_FRAME));
        let mine = machine.try_alloc(AllocRequest::frames(2 * SECTION));
        let other = other_thread.join().unwrap();
        assert!(mine.is_err() || other.is_err());
        machine.check();
        mine.into_iter().chain(other).for_each(|held| machine.free(held));
        machine.check_empty();
    });
}

#[test]
fn claims_over_two_sections_race() {
    model(|| {
        let machine = Machine::new(2);
        let request = AllocRequest::frames(SECTION + BLOCK);
        let other_thread = machine.spawn_on(1, move |machine| machine.try_alloc(request).ok());
        let mine = machine.try_alloc(request).ok();
        let other = other_thread.join().unwrap();
        assert!(mine.is_none() || other.is_none());
        machine.check();
        mine.into_iter().chain(other).for_each(|held| machine.free(held));
        machine.check_empty();
    });
}

#[test]
fn the_unused_tail_of_a_run_is_freed() {
    model(|| {
        let machine = Machine::new(1);
        let other_thread = machine.spawn_on(1, |machine| machine.try_alloc(ONE_FRAME));
        let mine = machine.try_alloc(AllocRequest::frames(BLOCK + 1));
        let other = other_thread.join().unwrap();
        assert!(mine.is_ok() || other.is_ok());
        machine.check();
        mine.into_iter().chain(other).for_each(|held| machine.free(held));
        machine.check_empty();
    });
}

#[test]
fn a_free_over_two_pageblocks_races_with_a_small_allocation() {
    model(|| {
        let machine = Machine::new(1);
        let run = machine.alloc(AllocRequest::frames(2 * BLOCK - 1));
        let (head, tail) = machine.split(run, 1);
        let other_thread = machine.spawn_on(1, |machine| machine.free(tail));
        let mine = machine.alloc(ONE_FRAME);
        other_thread.join().unwrap();
        machine.check();
        machine.free(head);
        machine.free(mine);
        machine.check_empty();
    });
}

fn exact_request(pfn: u64, frames: u64) -> AllocRequest {
    AllocRequest::frames(frames).at(range(pfn, 1).start())
}

#[test]
fn an_exact_place_races_with_an_allocation() {
    model(|| {
        let machine = Machine::new(1);
        let other_thread = machine.spawn_on(1, |machine| machine.alloc(ONE_FRAME));
        let mine = machine.try_alloc(exact_request(0, 2));
        let other = other_thread.join().unwrap();
        machine.check();
        mine.into_iter().chain([other]).for_each(|held| machine.free(held));
        machine.check_empty();
    });
}

#[test]
fn an_exact_place_in_a_divided_pageblock_races_with_an_allocation() {
    model(|| {
        let machine = Machine::new(1);
        let block = machine.alloc(ONE_BLOCK);
        let [a] = machine.alloc_singles();
        let first = a.range().start().number();
        let other_thread = machine.spawn_on(1, |machine| machine.try_alloc(ONE_FRAME));
        let mine = machine.try_alloc(exact_request(first + 1, 3));
        let other = other_thread.join().unwrap();
        assert!(mine.is_ok() || other.is_ok());
        machine.check();
        mine.into_iter().chain(other).chain([a, block]).for_each(|held| machine.free(held));
        machine.check_empty();
    });
}

#[test]
fn exact_places_race() {
    model(|| {
        let machine = Machine::new(1);
        let request = exact_request(0, BLOCK + 2);
        let other_thread = machine.spawn_on(1, move |machine| machine.try_alloc(request).ok());
        let mine = machine.try_alloc(request).ok();
        let other = other_thread.join().unwrap();
        assert!(mine.is_none() || other.is_none());
        machine.check();
        mine.into_iter().chain(other).for_each(|held: Held| machine.free(held));
        machine.check_empty();
    });
}

#[test]
fn an_exact_place_that_is_not_free_is_refused() {
    model(|| {
        let machine = Machine::new(1);
        let [a] = machine.alloc_singles();
        let place = a.range().start().number();
        let other_thread = machine.spawn_on(1, |machine| machine.free(a));
        match machine.try_alloc(exact_request(place, 1)) {
            Ok(held) => machine.free(held),
            Err(error) => assert_eq!(error, AllocError::NotFree(range(place, 1))),
        }
        other_thread.join().unwrap();
        machine.check_empty();
    });
}

#[test]
fn a_whole_allocation_races_with_a_run_that_is_allocated_and_freed() {
    model(|| {
        let machine = Machine::without_bitmaps(1);
        // CPU 0 has a section as its hint, and no pageblock has been divided.
        let mine = machine.alloc(AllocRequest::frames(BLOCK));
        machine.free(mine);
        let other_thread = machine.spawn_on(1, |machine| {
            machine.add_lasting_bitmaps(0);
            if let Some(run) = machine.alloc_unless_busy(AllocRequest::frames(2)) {
                machine.free(run);
            }
        });
        let mine = machine.alloc_unless_busy(AllocRequest::frames(BLOCK));
        other_thread.join().unwrap();
        machine.validate();
        mine.into_iter().for_each(|held| machine.free(held));
        machine.check_empty();
    });
}
