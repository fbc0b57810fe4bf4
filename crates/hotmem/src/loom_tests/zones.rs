//! Memory that goes and comes back for something else while an allocation is under way.

use super::machine::{BLOCK, range};
use super::{Machine, model_within};
use crate::frames::Want;
use crate::hotplug::OnlineType;

/// `want`, which is not movable, never gets memory that has become movable.
fn keeps_out_of_movable_memory(want: Want) {
    model_within(1, move || {
        let machine = Machine::new(1);
        let second = range(BLOCK, BLOCK);
        let first = machine.alloc(Want::frames(BLOCK));
        let other = machine.on_cpu(1, move |machine| {
            let gone = machine.take_offline(second);
            if gone {
                machine.online(second, OnlineType::Movable);
            }
            gone
        });
        let mine = machine.try_alloc(want).ok();
        let is_movable = other.join().unwrap();
        assert!(!is_movable || mine.is_none());
        machine.check();
        mine.into_iter().chain([first]).for_each(|held| machine.free(held));
        machine.check_empty();
    });
}

#[test]
fn one_frame() {
    keeps_out_of_movable_memory(Want::frames(1));
}

#[test]
fn a_pageblock() {
    keeps_out_of_movable_memory(Want::frames(BLOCK));
}

#[test]
fn a_part_of_a_pageblock() {
    keeps_out_of_movable_memory(Want::frames(BLOCK - 1));
}

#[test]
fn an_exact_place() {
    keeps_out_of_movable_memory(Want::frames(BLOCK).at(range(BLOCK, 1).start()));
}

#[test]
fn a_pageblock_that_is_split_and_free() {
    model_within(1, || {
        let machine = Machine::new(1);
        let second = range(BLOCK, BLOCK);
        let first = machine.alloc(Want::frames(BLOCK));
        // It stays split as CPU 0's hint.
        let [a] = machine.singles();
        machine.free(a);
        let other = machine.on_cpu(1, move |machine| {
            let gone = machine.take_offline(second);
            if gone {
                machine.online(second, OnlineType::Movable);
                let movable = machine.try_alloc(Want::frames(1).movable());
                movable.into_iter().for_each(|held| machine.free(held));
            }
            gone
        });
        let mine = machine.try_alloc(Want::frames(1)).ok();
        let is_movable = other.join().unwrap();
        assert!(!is_movable || mine.is_none());
        machine.check();
        mine.into_iter().chain([first]).for_each(|held| machine.free(held));
        machine.check_empty();
    });
}
