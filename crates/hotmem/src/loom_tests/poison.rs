//! Models the poisoning of a frame while other CPUs allocate, free or isolate memory. A poisoned
//! frame is never allocated again, no other frame is lost, and the owner of a poisoned frame can
//! use the frame until the owner frees it.

use super::instance::{BLOCK, ONE_BLOCK, ONE_FRAME, range};
use super::{Instance, large_model, model};
use crate::addr::Pfn;
use crate::frames::Poisoned;
use crate::range_error::{RangeError, RangeErrorKind};

/// Poisons a frame. Returns `None` if the frame is being allocated or freed.
pub(super) fn poison(instance: &Instance, frame: u64) -> Option<Poisoned> {
    match instance.hotplug().poison(Pfn::new(frame).unwrap()) {
        Ok(state) => Some(state),
        Err(error) => {
            assert_eq!(error, RangeError { range: range(frame, 1), kind: RangeErrorKind::Busy });
            None
        }
    }
}

/// Checks, while no operation is in flight, that a frame is poisoned and quarantined, and that all
/// other frames of the instance are free.
pub(super) fn check_quarantined(instance: &Instance, frame: u64) {
    assert_eq!(poison(instance, frame), Some(Poisoned::Quarantined));
    instance.validate();
    let free = instance.counts().free;
    let all: std::vec::Vec<_> =
        std::iter::from_fn(|| instance.try_alloc(ONE_FRAME.movable()).ok()).collect();
    assert_eq!(all.len() as u64, free);
    assert_eq!(free, 2 * BLOCK - 1);
    assert!(all.iter().all(|held| !held.range().contains(Pfn::new(frame).unwrap())));
    all.into_iter().for_each(|held| instance.free(held));
    instance.validate();
}

#[test]
fn poison_races_with_an_allocation() {
    large_model(|| {
        let instance = Instance::new(1);
        let second_block = instance.alloc(ONE_BLOCK.at(range(BLOCK, 1).start()));
        let [a] = instance.alloc_singles();
        let other_thread = instance.spawn_on(1, |instance| instance.try_alloc(ONE_FRAME).ok());
        // Frame 1 is the next free frame.
        let state = poison(&instance, 1);
        let other_held = other_thread.join().unwrap();
        instance.validate();
        let bad = Pfn::new(1).unwrap();
        if state == Some(Poisoned::Quarantined) {
            assert!(other_held.iter().all(|held| !held.range().contains(bad)));
        }
        other_held.into_iter().chain([a, second_block]).for_each(|held| instance.free(held));
        check_quarantined(&instance, 1);
    });
}

#[test]
fn poison_races_with_the_free_of_its_frame() {
    model(|| {
        let instance = Instance::new(1);
        let [a, b] = instance.alloc_singles();
        let other_thread = instance.spawn_on(1, |instance| instance.free(a));
        poison(&instance, 0);
        other_thread.join().unwrap();
        instance.validate();
        instance.free(b);
        check_quarantined(&instance, 0);
    });
}

#[test]
fn poison_races_with_the_last_free() {
    large_model(|| {
        let instance = Instance::new(1);
        let [a] = instance.alloc_singles();
        let other_thread = instance.spawn_on(1, |instance| instance.free(a));
        poison(&instance, 0);
        other_thread.join().unwrap();
        check_quarantined(&instance, 0);
    });
}

#[test]
fn poison_races_with_a_whole_free() {
    large_model(|| {
        let instance = Instance::new(1);
        let whole = instance.alloc(ONE_BLOCK);
        let start = whole.range().start().number();
        let other_thread = instance.spawn_on(1, |instance| instance.free(whole));
        poison(&instance, start + 1);
        other_thread.join().unwrap();
        check_quarantined(&instance, start + 1);
    });
}

#[test]
fn poison_races_with_a_whole_free_and_the_next_allocation() {
    large_model(|| {
        let instance = Instance::new(1);
        let whole = instance.alloc(ONE_BLOCK.at(range(0, 1).start()));
        let other_thread = instance.spawn_on(1, |instance| {
            instance.free(whole);
            instance.alloc_unless_busy(ONE_BLOCK)
        });
        let state = poison(&instance, 1);
        let held = other_thread.join().unwrap();
        instance.validate();
        if state == Some(Poisoned::Quarantined) {
            let bad = Pfn::new(1).unwrap();
            assert!(held.iter().all(|held| !held.range().contains(bad)));
        }
        held.into_iter().for_each(|held| instance.free(held));
        check_quarantined(&instance, 1);
    });
}

#[test]
fn a_second_poison_races_with_the_free_of_its_frame() {
    model(|| {
        let instance = Instance::new(1);
        let [a, b] = instance.alloc_singles();
        poison(&instance, 0);
        let other_thread = instance.spawn_on(1, |instance| instance.free(b));
        poison(&instance, 1);
        other_thread.join().unwrap();
        instance.validate();
        instance.free(a);
        assert_eq!(poison(&instance, 1), Some(Poisoned::Quarantined));
        assert_eq!(instance.counts().poisoned, 2);
        assert_eq!(instance.counts().free, 2 * BLOCK - 2);
    });
}

#[test]
fn poison_races_with_a_free_and_an_allocation() {
    large_model(|| {
        let instance = Instance::new(1);
        let second_block = instance.alloc(ONE_BLOCK.at(range(BLOCK, 1).start()));
        let [a, b, c] = instance.alloc_singles();
        let other_thread = instance.spawn_on(1, |instance| {
            instance.free(a);
            instance.try_alloc(ONE_FRAME).ok()
        });
        poison(&instance, 0);
        let other_held = other_thread.join().unwrap();
        instance.validate();
        other_held.into_iter().chain([b, c, second_block]).for_each(|held| instance.free(held));
        check_quarantined(&instance, 0);
    });
}

#[test]
fn poison_races_with_a_release() {
    large_model(|| {
        let instance = Instance::new(1);
        let other_thread = instance.spawn_on(1, |instance| {
            if let Ok(token) = instance.call().isolate_range(range(0, BLOCK)) {
                if token.in_use().is_none() {
                    instance.overwrite(token.range());
                }
                token.release();
            }
        });
        poison(&instance, 2);
        other_thread.join().unwrap();
        check_quarantined(&instance, 2);
    });
}

#[test]
fn isolation_of_poisoned_memory_races_with_the_last_free() {
    model(|| {
        let instance = Instance::new(1);
        let [a] = instance.alloc_singles();
        poison(&instance, 1);
        let token = instance.call().isolate_range(range(0, BLOCK)).unwrap();
        let other_thread = instance.spawn_on(1, |instance| instance.free(a));
        if token.in_use().is_none() {
            instance.overwrite(token.range());
        }
        other_thread.join().unwrap();
        instance.validate();
        assert_eq!(token.in_use(), None);
        instance.overwrite(token.range());
        token.release();
        check_quarantined(&instance, 1);
    });
}
