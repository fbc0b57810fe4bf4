//! Models the poisoning of a frame while other CPUs allocate, free or isolate memory. A poisoned
//! frame is never allocated again, no other frame is lost, and the owner of a poisoned frame can
//! use the frame until the owner frees it.

use super::machine::{BLOCK, range};
use super::{Machine, large_model, model};
use crate::addr::Pfn;
use crate::frames::{AllocRequest, Poisoned};
use crate::range_error::{RangeError, RangeErrorKind};

const ONE_FRAME: AllocRequest = AllocRequest::frames(1);
const ONE_BLOCK: AllocRequest = AllocRequest::frames(BLOCK);

/// Poisons a frame. Returns `None` if the frame is being allocated or freed.
fn poison(machine: &Machine, frame: u64) -> Option<Poisoned> {
    match machine.hotplug().poison(Pfn::new(frame).unwrap()) {
        Ok(state) => Some(state),
        Err(error) => {
            assert_eq!(error, RangeError { range: range(frame, 1), kind: RangeErrorKind::Busy });
            None
        }
    }
}

/// Checks, while no operation is in flight, that a frame is poisoned and quarantined, and that all
/// other frames of the machine are free.
fn check_quarantined(machine: &Machine, frame: u64) {
    assert_eq!(poison(machine, frame), Some(Poisoned::Quarantined));
    machine.validate();
    let free = machine.counts().free;
    let all: std::vec::Vec<_> =
        std::iter::from_fn(|| machine.try_alloc(ONE_FRAME.movable()).ok()).collect();
    assert_eq!(all.len() as u64, free);
    assert_eq!(free, 2 * BLOCK - 1);
    assert!(all.iter().all(|held| !held.range().contains(Pfn::new(frame).unwrap())));
    all.into_iter().for_each(|held| machine.free(held));
    machine.validate();
}

#[test]
fn poison_races_with_an_allocation() {
    model(|| {
        let machine = Machine::new(1);
        let second_block = machine.alloc(ONE_BLOCK.at(range(BLOCK, 1).start()));
        let [a] = machine.alloc_singles();
        let other_thread = machine.spawn_on(1, |machine| machine.try_alloc(ONE_FRAME).ok());
        // Frame 1 is the next free frame.
        let state = poison(&machine, 1);
        let other_held = other_thread.join().unwrap();
        machine.validate();
        let bad = Pfn::new(1).unwrap();
        if state == Some(Poisoned::Quarantined) {
            assert!(other_held.iter().all(|held| !held.range().contains(bad)));
        }
        other_held.into_iter().chain([a, second_block]).for_each(|held| machine.free(held));
        check_quarantined(&machine, 1);
    });
}

#[test]
fn poison_races_with_the_free_of_its_frame() {
    model(|| {
        let machine = Machine::new(1);
        let [a, b] = machine.alloc_singles();
        let other_thread = machine.spawn_on(1, |machine| machine.free(a));
        poison(&machine, 0);
        other_thread.join().unwrap();
        machine.validate();
        machine.free(b);
        check_quarantined(&machine, 0);
    });
}

#[test]
fn poison_races_with_the_last_free() {
    model(|| {
        let machine = Machine::new(1);
        let [a] = machine.alloc_singles();
        let other_thread = machine.spawn_on(1, |machine| machine.free(a));
        poison(&machine, 0);
        other_thread.join().unwrap();
        check_quarantined(&machine, 0);
    });
}

#[test]
fn poison_races_with_a_whole_free() {
    model(|| {
        let machine = Machine::new(1);
        let whole = machine.alloc(ONE_BLOCK);
        let start = whole.range().start().number();
        let other_thread = machine.spawn_on(1, |machine| machine.free(whole));
        poison(&machine, start + 1);
        other_thread.join().unwrap();
        check_quarantined(&machine, start + 1);
    });
}

#[test]
fn poison_races_with_a_whole_free_and_the_next_allocation() {
    large_model(1, 3, || {
        let machine = Machine::new(1);
        let whole = machine.alloc(ONE_BLOCK.at(range(0, 1).start()));
        let other_thread = machine.spawn_on(1, |machine| {
            machine.free(whole);
            machine.alloc_unless_busy(ONE_BLOCK)
        });
        let state = poison(&machine, 1);
        let held = other_thread.join().unwrap();
        machine.validate();
        if state == Some(Poisoned::Quarantined) {
            let bad = Pfn::new(1).unwrap();
            assert!(held.iter().all(|held| !held.range().contains(bad)));
        }
        held.into_iter().for_each(|held| machine.free(held));
        check_quarantined(&machine, 1);
    });
}

#[test]
fn a_second_poison_races_with_the_free_of_its_frame() {
    model(|| {
        let machine = Machine::new(1);
        let [a, b] = machine.alloc_singles();
        poison(&machine, 0);
        let other_thread = machine.spawn_on(1, |machine| machine.free(b));
        poison(&machine, 1);
        other_thread.join().unwrap();
        machine.validate();
        machine.free(a);
        assert_eq!(poison(&machine, 1), Some(Poisoned::Quarantined));
        assert_eq!(machine.counts().poisoned, 2);
        assert_eq!(machine.counts().free, 2 * BLOCK - 2);
    });
}

#[test]
fn poison_races_with_a_free_and_an_allocation() {
    model(|| {
        let machine = Machine::new(1);
        let second_block = machine.alloc(ONE_BLOCK.at(range(BLOCK, 1).start()));
        let [a, b, c] = machine.alloc_singles();
        let other_thread = machine.spawn_on(1, |machine| {
            machine.free(a);
            machine.try_alloc(ONE_FRAME).ok()
        });
        poison(&machine, 0);
        let other_held = other_thread.join().unwrap();
        machine.validate();
        other_held.into_iter().chain([b, c, second_block]).for_each(|held| machine.free(held));
        check_quarantined(&machine, 0);
    });
}

#[test]
fn poison_races_with_a_release() {
    large_model(1, 3, || {
        let machine = Machine::new(1);
        let other_thread = machine.spawn_on(1, |machine| {
            if let Ok(token) = machine.isolate_range(range(0, BLOCK)) {
                if token.in_use().is_none() {
                    machine.overwrite(token.range());
                }
                token.release();
            }
        });
        poison(&machine, 2);
        other_thread.join().unwrap();
        check_quarantined(&machine, 2);
    });
}

#[test]
fn isolation_of_poisoned_memory_races_with_the_last_free() {
    model(|| {
        let machine = Machine::new(1);
        let [a] = machine.alloc_singles();
        poison(&machine, 1);
        let token = machine.isolate_range(range(0, BLOCK)).unwrap();
        let other_thread = machine.spawn_on(1, |machine| machine.free(a));
        if token.in_use().is_none() {
            machine.overwrite(token.range());
        }
        other_thread.join().unwrap();
        machine.validate();
        assert_eq!(token.in_use(), None);
        machine.overwrite(token.range());
        token.release();
        check_quarantined(&machine, 1);
    });
}
