//! Models memory that goes offline and comes back in another zone during an allocation.

use super::machine::{BLOCK, range};
use super::{Machine, model, model_within};
use crate::frames::AllocRequest;
use crate::hotplug::OnlineType;

/// Checks that `request`, which is not movable, never gets memory that has become movable.
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
fn a_request_for_a_frame_gets_no_movable_memory() {
    keeps_out_of_movable_memory(AllocRequest::frames(1));
}

#[test]
fn a_request_for_a_pageblock_gets_no_movable_memory() {
    keeps_out_of_movable_memory(AllocRequest::frames(BLOCK));
}

#[test]
fn a_request_for_a_part_of_a_pageblock_gets_no_movable_memory() {
    keeps_out_of_movable_memory(AllocRequest::frames(BLOCK - 1));
}

#[test]
fn a_request_for_an_exact_place_gets_no_movable_memory() {
    keeps_out_of_movable_memory(AllocRequest::frames(BLOCK).at(range(BLOCK, 1).start()));
}

#[test]
fn a_free_pageblock_that_stays_split_changes_its_zone() {
    model_within(1, || {
        let machine = Machine::new(1);
        let second = range(BLOCK, BLOCK);
        let first = machine.alloc(AllocRequest::frames(BLOCK));
        // The pageblock stays split, as CPU 0's hint.
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

/// The free of a frame is slow to set the `partial` bit: meanwhile the pageblock leaves, and comes
/// back in the other zone. The pageblock beside it, of that zone, can be found nevertheless.
#[test]
fn a_late_partial_bit_races_with_a_change_of_zone() {
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
        // Both CPUs have other pageblocks as hints.
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

/// The free of a pageblock is slow, and meanwhile the pageblock beside it changes its zone. Both
/// can be found.
fn a_late_publish(before: OnlineType, after: OnlineType) {
    model(move || {
        let machine = Machine::new(2);
        let second = range(BLOCK, BLOCK);
        let first = machine.alloc(AllocRequest::frames(BLOCK).at(range(0, 1).start()));
        assert!(machine.take_offline(second));
        machine.online(second, before);
        // Both CPUs have another section as their hint.
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
fn a_late_publish_beside_memory_that_leaves_the_zone() {
    a_late_publish(OnlineType::Kernel, OnlineType::Movable);
}

#[test]
fn a_late_publish_beside_memory_that_comes_to_the_zone() {
    a_late_publish(OnlineType::Movable, OnlineType::Kernel);
}
