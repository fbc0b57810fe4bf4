//! Models allocations that take back the isolated memory of a request that waits.

use super::instance::{BLOCK, Held, Instance, ONE_BLOCK, ONE_FRAME, range};
use super::{large_model, model};
use crate::frames::AllocError;
use crate::isolate::ParkedIsolation;
use crate::platform::Platform;

/// Isolates the first pageblock and parks it. All other memory is in use.
fn park(instance: &Instance) -> (ParkedIsolation<'_, impl Platform + use<>>, Held) {
    let second_block = instance.alloc_second_block();
    let token = instance.call().isolate_range(range(0, BLOCK)).unwrap();
    let Ok(parked) = token.park() else { panic!("nothing else is parked") };
    (parked, second_block)
}

/// Either the request has its memory again, or the allocation gets it.
#[test]
fn a_recall_races_with_the_request() {
    model(|| {
        let instance = Instance::new(1);
        let (parked, second_block) = park(&instance);
        let other_thread = instance.spawn_on(1, |instance| instance.try_alloc(ONE_BLOCK));
        let was_recalled = match parked.unpark() {
            Some(token) => {
                assert_eq!(token.in_use(), None);
                instance.overwrite(token.range());
                token.release();
                false
            }
            None => true,
        };
        let allocated = other_thread.join().unwrap();
        assert!(allocated.is_ok() || !was_recalled);
        instance.check();
        allocated.into_iter().chain([second_block]).for_each(|held| instance.free(held));
        instance.check_empty();
    });
}

/// While one CPU gives the memory back, another must not conclude that no memory is free. Two CPUs
/// that search at the same time may both be busy, because a model searches only once.
#[test]
fn two_recalls_race() {
    large_model(|| {
        let instance = Instance::new(1);
        let (parked, second_block) = park(&instance);
        let other_thread = instance.spawn_on(1, |instance| instance.try_alloc(ONE_FRAME));
        let main_held = instance.try_alloc(ONE_FRAME);
        let allocated = [main_held, other_thread.join().unwrap()];
        for result in &allocated {
            assert!(matches!(result, Ok(_) | Err(AllocError::Busy)), "{result:?}");
        }
        match parked.unpark() {
            Some(token) => {
                assert!(allocated.iter().all(Result::is_err));
                token.release();
            }
            None => assert!(allocated.iter().any(Result::is_ok)),
        }
        instance.check();
        let held = allocated.into_iter().flatten().chain([second_block]);
        held.for_each(|held| instance.free(held));
        instance.check_empty();
    });
}
