//! Memory that goes and comes back for something else while an allocation is under way.

use super::machine::{BLOCK, range};
use super::{Machine, model, model_within};
use crate::frames::AllocRequest;
use crate::hotplug::OnlineType;

/// `request`, which is not movable, never gets memory that has become movable.
fn keeps_out_of_movable_memory(request: AllocRequest) {
    model_within(1, move || {
        let machine = Machine::new(1);
        let second = range(BLOCK, BLOCK);
        let first = machine.alloc(AllocRequest::frames(BLOCK));
        let other = machine.on_cpu(1, move |machine| {
            let gone = machine.take_offline(second);
            if gone {
                machine.online(second, OnlineType::Movable);
            }
            gone
        });
        let mine = machine.try_alloc(request).ok();
        let is_movable = other.join().unwrap();
        assert!(!is_movable || mine.is_none());
        machine.check();
        mine.into_iter().chain([first]).for_each(|held| machine.free(held));
        machine.check_empty();
    });
}

#[test]
fn one_frame() {
    keeps_out_of_movable_memory(AllocRequest::frames(1));
}

#[test]
fn a_pageblock() {
    keeps_out_of_movable_memory(AllocRequest::frames(BLOCK));
}

#[test]
fn a_part_of_a_pageblock() {
    keeps_out_of_movable_memory(AllocRequest::frames(BLOCK - 1));
}

#[test]
fn an_exact_place() {
    keeps_out_of_movable_memory(AllocRequest::frames(BLOCK).at(range(BLOCK, 1).start()));
}

#[test]
fn a_pageblock_that_is_split_and_free() {
    model_within(1, || {
        let machine = Machine::new(1);
        let second = range(BLOCK, BLOCK);
        let first = machine.alloc(AllocRequest::frames(BLOCK));
        // It stays split as CPU 0's hint.
        let [a] = machine.singles();
        machine.free(a);
        let other = machine.on_cpu(1, move |machine| {
            let gone = machine.take_offline(second);
            if gone {
                machine.online(second, OnlineType::Movable);
                let movable = machine.try_alloc(AllocRequest::frames(1).movable());
                movable.into_iter().for_each(|held| machine.free(held));
            }
            gone
        });
        let mine = machine.try_alloc(AllocRequest::frames(1)).ok();
        let is_movable = other.join().unwrap();
        assert!(!is_movable || mine.is_none());
        machine.check();
        mine.into_iter().chain([first]).for_each(|held| machine.free(held));
        machine.check_empty();
    });
}

/// Whoever frees is slow to say that a pageblock has free frames: meanwhile it leaves and comes
/// back in the other zone. What is there of that zone beside it can be found nevertheless.
#[test]
fn a_late_word_of_free_frames() {
    model(|| {
        let machine = Machine::new(2);
        let [first, third] = [0, 2].map(|number| range(number * BLOCK, BLOCK));
        for movable in [first, third] {
            assert!(machine.take_offline(movable));
            machine.online(movable, OnlineType::Movable);
        }
        let whole =
            |number: u64| AllocRequest::frames(BLOCK).at(range(number * BLOCK, BLOCK).start());
        let [leaving, beside] = [machine.alloc(whole(0).movable()), machine.alloc(whole(1))];
        // Both CPUs have other pageblocks at hand.
        let one = AllocRequest::frames(1);
        let hints = [machine.alloc(one), machine.as_cpu(1, |m| m.alloc(one.movable()))];
        let (slow, rest) = machine.split(leaving, 1);
        let other = machine.on_cpu(1, move |machine| machine.free(slow));
        machine.free(rest);
        let gone = machine.take_offline(first);
        if gone {
            machine.online(first, OnlineType::Kernel);
        }
        let mine = machine.try_alloc(whole(0)).ok();
        other.join().unwrap();
        let (freed, beside) = machine.split(beside, 1);
        machine.free(freed);
        machine.check();
        let held = hints.into_iter().chain(mine).chain([beside]);
        held.for_each(|held| machine.free(held));
        machine.check_empty();
    });
}

/// Whoever frees a pageblock is slow, and meanwhile what is beside it changes its zone: both can be
/// found.
fn a_late_publish(before: OnlineType, after: OnlineType) {
    model(move || {
        let machine = Machine::new(2);
        let second = range(BLOCK, BLOCK);
        let first = machine.alloc(AllocRequest::frames(BLOCK).at(range(0, 1).start()));
        assert!(machine.take_offline(second));
        machine.online(second, before);
        // Both CPUs have another section at hand.
        for cpu in [0, 1] {
            let near = AllocRequest::frames(BLOCK).at(range(2 * BLOCK, 1).start());
            let near = machine.as_cpu(cpu, |machine| machine.alloc(near));
            machine.as_cpu(cpu, |machine| machine.free(near));
        }
        let other = machine.on_cpu(1, move |machine| machine.free(first));
        assert!(machine.take_offline(second));
        machine.online(second, after);
        other.join().unwrap();
        machine.check();
        machine.check_empty();
    });
}

#[test]
fn a_late_publish_beside_what_leaves_the_zone() {
    a_late_publish(OnlineType::Kernel, OnlineType::Movable);
}

#[test]
fn a_late_publish_beside_what_comes_to_the_zone() {
    a_late_publish(OnlineType::Movable, OnlineType::Kernel);
}
