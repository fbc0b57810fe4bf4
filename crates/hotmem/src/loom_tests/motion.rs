//! Checks that an allocation does not fail as "out of memory" if enough frames are free all the
//! time, even if other operations hide them for a moment.

use super::instance::{BLOCK, Held, ONE_BLOCK, ONE_FRAME, range};
use super::{Instance, large_model, model, model_preemptions};
use crate::frames::{AllocError, AllocRequest};
use crate::range_error::{RangeError, RangeErrorKind};
use std::sync::Arc;

/// Allocates and frees `request`, for which enough frames are free all the time. The allocation may
/// fail as "busy", but not as "out of memory".
fn check_not_out_of_memory(instance: &Instance, request: AllocRequest) {
    match instance.try_alloc(request) {
        Ok(held) => instance.free(held),
        Err(error) => assert_eq!(error, AllocError::Busy),
    }
}

#[test]
fn two_cpus_allocate_one_of_two_frames_each() {
    model(|| {
        let instance = Instance::new(1);
        let held = instance.alloc_singles::<6>();
        let other_thread =
            instance.spawn_on(1, |instance| check_not_out_of_memory(instance, ONE_FRAME));
        check_not_out_of_memory(&instance, ONE_FRAME);
        other_thread.join().unwrap();
        held.into_iter().for_each(|held| instance.free(held));
        instance.check_empty();
    });
}

#[test]
fn two_cpus_split_one_of_two_pageblocks_each() {
    model(|| {
        let instance = Instance::new(1);
        let other_thread =
            instance.spawn_on(1, |instance| check_not_out_of_memory(instance, ONE_FRAME));
        check_not_out_of_memory(&instance, ONE_FRAME);
        other_thread.join().unwrap();
        instance.check_empty();
    });
}

#[test]
fn the_rest_of_a_whole_allocation_is_given_back_during_another() {
    model(|| {
        let instance = Instance::new(1);
        let other_thread = instance.spawn_on(1, |instance| {
            check_not_out_of_memory(instance, AllocRequest::frames(BLOCK - 1))
        });
        check_not_out_of_memory(&instance, AllocRequest::frames(BLOCK - 1));
        other_thread.join().unwrap();
        instance.check_empty();
    });
}

#[test]
fn a_last_free_races_with_an_allocation() {
    model(|| {
        let instance = Instance::new(1);
        let block = instance.alloc(ONE_BLOCK);
        let [a] = instance.alloc_singles();
        // Three frames of the pageblock are free all the time, whether it is coalesced or not.
        let other_thread = instance.spawn_on(1, |instance| instance.free(a));
        check_not_out_of_memory(&instance, ONE_FRAME);
        other_thread.join().unwrap();
        instance.free(block);
        instance.check_empty();
    });
}

#[test]
fn a_search_for_a_run_fails_during_an_allocation() {
    model_preemptions(1, || {
        let instance = Instance::new(1);
        let block = instance.alloc(ONE_BLOCK);
        let [a, b, c, d] = instance.alloc_singles();
        instance.free(b);
        instance.free(d);
        let other_thread = instance.spawn_on(1, |instance| {
            let refused = instance.try_alloc(AllocRequest::frames(2));
            assert!(refused.is_err());
        });
        check_not_out_of_memory(&instance, ONE_FRAME);
        other_thread.join().unwrap();
        [a, c, block].into_iter().for_each(|held| instance.free(held));
        instance.check_empty();
    });
}

#[test]
fn a_claim_over_sections_fails_during_an_allocation() {
    model(|| {
        let instance = Instance::new(2);
        let last = instance.alloc(ONE_BLOCK.at(range(3 * BLOCK, 1).start()));
        let other_thread =
            instance.spawn_on(1, |instance| check_not_out_of_memory(instance, ONE_BLOCK));
        assert!(instance.try_alloc(AllocRequest::frames(4 * BLOCK)).is_err());
        other_thread.join().unwrap();
        instance.free(last);
        instance.check_empty();
    });
}

#[test]
fn a_release_races_with_an_allocation() {
    model(|| {
        let instance = Instance::new(1);
        let [a] = instance.alloc_singles();
        let token = instance.call().isolate_range(range(BLOCK, BLOCK)).unwrap();
        let other_thread =
            instance.spawn_on(1, |instance| check_not_out_of_memory(instance, ONE_FRAME));
        token.release();
        other_thread.join().unwrap();
        instance.free(a);
        instance.check_empty();
    });
}

#[test]
fn an_isolation_fails_during_an_allocation() {
    model(|| {
        let instance = Instance::new(1);
        let first = instance.call().isolate_range(range(BLOCK, BLOCK)).unwrap();
        let other_thread =
            instance.spawn_on(1, |instance| check_not_out_of_memory(instance, ONE_FRAME));
        let held = RangeError { range: range(BLOCK, BLOCK), kind: RangeErrorKind::Isolated };
        match instance.call().isolate_range(range(0, 2 * BLOCK)) {
            Ok(_) => unreachable!("a pageblock was isolated by two tokens"),
            Err(error) => assert!(
                matches!(error, RangeError { kind: RangeErrorKind::Busy, .. }) || error == held
            ),
        }
        other_thread.join().unwrap();
        first.release();
        instance.check_empty();
    });
}

/// The request for both pageblocks fails because another thread takes the second one. That thread
/// then allocates while the first one may be claimed for the request.
#[test]
fn a_request_for_an_exact_place_fails_during_an_allocation() {
    large_model(|| {
        let instance = Instance::new(1);
        let second = ONE_BLOCK.at(range(BLOCK, 1).start());
        let first_two = AllocRequest::frames(2 * BLOCK).at(range(0, 1).start());
        let other_thread = instance.spawn_on(1, move |instance| {
            (instance.try_alloc(second).ok(), instance.try_alloc(ONE_BLOCK))
        });
        let main_held = instance.try_alloc(first_two).ok();
        let (second_held, any_held) = other_thread.join().unwrap();
        if main_held.is_none() {
            // The request for both pageblocks failed, so the first pageblock was free all the time.
            assert!(!matches!(any_held, Err(AllocError::OutOfMemory)));
        }
        main_held
            .into_iter()
            .chain(second_held)
            .chain(any_held)
            .for_each(|held| instance.free(held));
        instance.check_empty();
    });
}

/// Makes an instance in which only the last frame of the first pageblock is free. The first
/// pageblock is CPU 0's hint.
fn nearly_full_instance() -> (Arc<Instance>, [Held; 4]) {
    let instance = Instance::new(1);
    let block = instance.alloc(ONE_BLOCK.at(range(BLOCK, 1).start()));
    let [a, b, c, last] = instance.alloc_singles();
    instance.free(last);
    (instance, [block, a, b, c])
}

#[test]
fn a_frame_is_freed_and_another_taken_where_a_search_has_been() {
    model(|| {
        let (instance, [block, a, b, c]) = nearly_full_instance();
        let other_thread = instance.spawn_on(1, |instance| instance.alloc_unless_busy(ONE_FRAME));
        instance.free(a);
        let main_held = instance.alloc_unless_busy(ONE_FRAME);
        let other_held = other_thread.join().unwrap();
        instance.check();
        main_held
            .into_iter()
            .chain(other_held)
            .chain([block, b, c])
            .for_each(|held| instance.free(held));
        instance.check_empty();
    });
}

/// Another free of a frame of the same word is in flight, so the word may have a free frame
/// already.
#[test]
fn a_second_frame_of_a_word_is_freed_where_a_search_has_been() {
    large_model(|| {
        let (instance, [block, a, b, c]) = nearly_full_instance();
        let first_thread = instance.spawn_on(0, |instance| instance.free(a));
        let other_thread = instance.spawn_on(0, |instance| {
            instance.free(b);
            instance.alloc_unless_busy(ONE_FRAME)
        });
        let main_held = instance.run_as(1, |instance| instance.alloc_unless_busy(ONE_FRAME));
        first_thread.join().unwrap();
        let other_held = other_thread.join().unwrap();
        instance.check();
        main_held
            .into_iter()
            .chain(other_held)
            .chain([block, c])
            .for_each(|held| instance.free(held));
        instance.check_empty();
    });
}
