//! Models allocations and frees of whole pageblocks and of runs of pageblocks, and allocations at
//! exact places.

use super::instance::{BLOCK, Held, ONE_BLOCK, ONE_FRAME, SECTION, range};
use super::{Instance, large_model, model};
use crate::frames::{AllocError, AllocRequest};

#[test]
fn whole_allocations_race() {
    model(|| {
        let instance = Instance::new(1);
        instance.race_allocations(ONE_BLOCK, 1, ONE_BLOCK);
        instance.check_empty();
    });
}

#[test]
fn whole_allocations_race_for_the_last_pageblock() {
    model(|| {
        let instance = Instance::new(1);
        let block = instance.alloc(ONE_BLOCK);
        let other_thread = instance.spawn_on(1, |instance| instance.try_alloc(ONE_BLOCK).ok());
        let main_held = instance.try_alloc(ONE_BLOCK).ok();
        let other_held = other_thread.join().unwrap();
        assert!(main_held.is_some() != other_held.is_some());
        main_held.into_iter().chain(other_held).chain([block]).for_each(|held| instance.free(held));
        instance.check_empty();
    });
}

#[test]
fn whole_frees_race() {
    model(|| {
        let instance = Instance::new(1);
        let [a, b] = [instance.alloc(ONE_BLOCK), instance.alloc(ONE_BLOCK)];
        let other_thread = instance.spawn_on(1, |instance| instance.free(a));
        instance.free(b);
        other_thread.join().unwrap();
        instance.check_empty();
    });
}

#[test]
fn whole_frees_beside_a_free_pageblock_race() {
    large_model(|| {
        let instance = Instance::new(1);
        let [a, b] = [instance.alloc(ONE_BLOCK), instance.alloc(ONE_BLOCK)];
        let other_thread = instance.spawn_on(1, |instance| {
            instance.free(a);
            let again = instance.alloc(ONE_BLOCK);
            instance.free(again);
        });
        instance.free(b);
        other_thread.join().unwrap();
        instance.check_empty();
    });
}

#[test]
fn whole_free_races_with_a_whole_allocation() {
    large_model(|| {
        let instance = Instance::new(1);
        let [a, b] = [instance.alloc(ONE_BLOCK), instance.alloc(ONE_BLOCK)];
        let other_thread = instance.spawn_on(1, |instance| instance.free(a));
        let main_held = instance.try_alloc(ONE_BLOCK);
        other_thread.join().unwrap();
        instance.check();
        main_held.into_iter().chain([b]).for_each(|held| instance.free(held));
        instance.check_empty();
    });
}

#[test]
fn a_pageblock_is_freed_beside_a_free_one() {
    model(|| {
        let instance = Instance::new(1);
        let a = instance.alloc(ONE_BLOCK);
        let other_thread = instance.spawn_on(1, |instance| instance.free(a));
        let main_held = instance.alloc(ONE_BLOCK);
        other_thread.join().unwrap();
        instance.free(main_held);
        instance.check_empty();
    });
}

#[test]
fn pairs_of_a_whole_allocation_and_its_free_race() {
    large_model(|| {
        let instance = Instance::new(1);
        let block = instance.alloc(ONE_BLOCK);
        let other_thread = instance.spawn_on(1, |instance| {
            let main_held = instance.try_alloc(ONE_BLOCK);
            main_held.into_iter().for_each(|held| instance.free(held));
        });
        let main_held = instance.try_alloc(ONE_BLOCK);
        main_held.into_iter().for_each(|held| instance.free(held));
        other_thread.join().unwrap();
        instance.free(block);
        instance.check_empty();
    });
}

#[test]
fn a_claim_over_two_sections_is_undone() {
    large_model(|| {
        let instance = Instance::new(2);
        let other_thread = instance.spawn_on(1, |instance| instance.try_alloc(ONE_FRAME));
        let main_held = instance.try_alloc(AllocRequest::frames(2 * SECTION));
        let other_held = other_thread.join().unwrap();
        assert!(main_held.is_err() || other_held.is_err());
        instance.check();
        main_held.into_iter().chain(other_held).for_each(|held| instance.free(held));
        instance.check_empty();
    });
}

#[test]
fn claims_over_two_sections_race() {
    large_model(|| {
        let instance = Instance::new(2);
        let request = AllocRequest::frames(SECTION + BLOCK);
        let other_thread = instance.spawn_on(1, move |instance| instance.try_alloc(request).ok());
        let main_held = instance.try_alloc(request).ok();
        let other_held = other_thread.join().unwrap();
        assert!(main_held.is_none() || other_held.is_none());
        instance.check();
        main_held.into_iter().chain(other_held).for_each(|held| instance.free(held));
        instance.check_empty();
    });
}

#[test]
fn the_unused_tail_of_a_run_is_freed() {
    large_model(|| {
        let instance = Instance::new(1);
        let other_thread = instance.spawn_on(1, |instance| instance.try_alloc(ONE_FRAME));
        let main_held = instance.try_alloc(AllocRequest::frames(BLOCK + 1));
        let other_held = other_thread.join().unwrap();
        assert!(main_held.is_ok() || other_held.is_ok());
        instance.check();
        main_held.into_iter().chain(other_held).for_each(|held| instance.free(held));
        instance.check_empty();
    });
}

#[test]
fn a_free_over_two_pageblocks_races_with_a_small_allocation() {
    model(|| {
        let instance = Instance::new(1);
        let run = instance.alloc(AllocRequest::frames(2 * BLOCK - 1));
        let (head, tail) = instance.split(run, 1);
        let other_thread = instance.spawn_on(1, |instance| instance.free(tail));
        let main_held = instance.alloc(ONE_FRAME);
        other_thread.join().unwrap();
        instance.check();
        instance.free(head);
        instance.free(main_held);
        instance.check_empty();
    });
}

fn exact_request(pfn: u64, frames: u64) -> AllocRequest {
    AllocRequest::frames(frames).at(range(pfn, 1).start())
}

#[test]
fn an_exact_place_races_with_an_allocation() {
    large_model(|| {
        let instance = Instance::new(1);
        let other_thread = instance.spawn_on(1, |instance| instance.alloc(ONE_FRAME));
        let main_held = instance.try_alloc(exact_request(0, 2));
        let other_held = other_thread.join().unwrap();
        instance.check();
        main_held.into_iter().chain([other_held]).for_each(|held| instance.free(held));
        instance.check_empty();
    });
}

#[test]
fn an_exact_place_in_a_divided_pageblock_races_with_an_allocation() {
    model(|| {
        let instance = Instance::new(1);
        let block = instance.alloc(ONE_BLOCK);
        let [a] = instance.alloc_singles();
        let first = a.range().start().number();
        let other_thread = instance.spawn_on(1, |instance| instance.try_alloc(ONE_FRAME));
        let main_held = instance.try_alloc(exact_request(first + 1, 3));
        let other_held = other_thread.join().unwrap();
        assert!(main_held.is_ok() || other_held.is_ok());
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
fn exact_places_race() {
    large_model(|| {
        let instance = Instance::new(1);
        let request = exact_request(0, BLOCK + 2);
        let other_thread = instance.spawn_on(1, move |instance| instance.try_alloc(request).ok());
        let main_held = instance.try_alloc(request).ok();
        let other_held = other_thread.join().unwrap();
        assert!(main_held.is_none() || other_held.is_none());
        instance.check();
        main_held.into_iter().chain(other_held).for_each(|held: Held| instance.free(held));
        instance.check_empty();
    });
}

#[test]
fn an_exact_place_that_is_not_free_is_refused() {
    model(|| {
        let instance = Instance::new(1);
        let [a] = instance.alloc_singles();
        let place = a.range().start().number();
        let other_thread = instance.spawn_on(1, |instance| instance.free(a));
        match instance.try_alloc(exact_request(place, 1)) {
            Ok(held) => instance.free(held),
            Err(error) => assert_eq!(error, AllocError::NotFree(range(place, 1))),
        }
        other_thread.join().unwrap();
        instance.check_empty();
    });
}

#[test]
fn a_whole_allocation_races_with_a_run_that_is_allocated_and_freed() {
    model(|| {
        let instance = Instance::without_bitmaps(1);
        // CPU 0 has a section as its hint, and no pageblock has been divided.
        let main_held = instance.alloc(AllocRequest::frames(BLOCK));
        instance.free(main_held);
        let other_thread = instance.spawn_on(1, |instance| {
            instance.add_lasting_bitmaps(0);
            if let Some(run) = instance.alloc_unless_busy(AllocRequest::frames(2)) {
                instance.free(run);
            }
        });
        let main_held = instance.alloc_unless_busy(AllocRequest::frames(BLOCK));
        other_thread.join().unwrap();
        instance.validate();
        main_held.into_iter().for_each(|held| instance.free(held));
        instance.check_empty();
    });
}
