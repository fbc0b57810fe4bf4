//! Models memory that goes offline, and comes online again in another zone, during another
//! operation.

use super::machine::{BLOCK, range};
use super::{Machine, is_deep, large_model, model, model_preemptions};
use crate::frames::AllocRequest;
use crate::hotplug::OnlineType;

/// Checks that `request`, which is not movable, gets no memory that has become movable.
fn check_that_no_movable_memory_is_allocated(request: AllocRequest) {
    model_preemptions(1, move || {
        let machine = Machine::new(1);
        let second = range(BLOCK, BLOCK);
        let first = machine.alloc(AllocRequest::frames(BLOCK));
        let other_thread = machine.spawn_on(1, move |machine| {
            let is_offline = machine.take_offline(second);
            if is_offline {
                machine.online(second, OnlineType::Movable);
            }
            is_offline
        });
        let mine = machine.try_alloc(request).ok();
        let is_movable = other_thread.join().unwrap();
        assert!(!is_movable || mine.is_none());
        machine.check();
        mine.into_iter().chain([first]).for_each(|held| machine.free(held));
        machine.check_empty();
    });
}

#[test]
fn a_request_for_a_frame_gets_no_movable_memory() {
    check_that_no_movable_memory_is_allocated(AllocRequest::frames(1));
}

#[test]
fn a_request_for_a_pageblock_gets_no_movable_memory() {
    check_that_no_movable_memory_is_allocated(AllocRequest::frames(BLOCK));
}

#[test]
fn a_request_for_a_part_of_a_pageblock_gets_no_movable_memory() {
    check_that_no_movable_memory_is_allocated(AllocRequest::frames(BLOCK - 1));
}

#[test]
fn a_request_for_an_exact_place_gets_no_movable_memory() {
    check_that_no_movable_memory_is_allocated(
        AllocRequest::frames(BLOCK).at(range(BLOCK, 1).start()),
    );
}

#[test]
fn a_free_pageblock_that_stays_divided_changes_its_zone() {
    model_preemptions(1, || {
        let machine = Machine::new(1);
        let second = range(BLOCK, BLOCK);
        let first = machine.alloc(AllocRequest::frames(BLOCK));
        // The pageblock stays divided, because it is CPU 0's hint.
        let [a] = machine.alloc_singles();
        machine.free(a);
        let other_thread = machine.spawn_on(1, move |machine| {
            let is_offline = machine.take_offline(second);
            if is_offline {
                machine.online(second, OnlineType::Movable);
                // Twenty times as many interleavings, which take a minute.
                if is_deep() {
                    let movable = machine.try_alloc(AllocRequest::frames(1).movable());
                    movable.into_iter().for_each(|held| machine.free(held));
                }
            }
            is_offline
        });
        let mine = machine.try_alloc(AllocRequest::frames(1)).ok();
        let is_movable = other_thread.join().unwrap();
        assert!(!is_movable || mine.is_none());
        machine.check();
        mine.into_iter().chain([first]).for_each(|held| machine.free(held));
        machine.check_empty();
    });
}

/// The free of a frame may set the `partial` bit late: after the pageblock has gone offline and
/// come online as kernel memory. The second pageblock of the section is kernel memory, and must
/// still be found.
#[test]
fn a_late_partial_bit_races_with_a_change_of_zone() {
    large_model(1, 3, || {
        let machine = Machine::new(2);
        let [first, third] = [0, 2].map(|number| range(number * BLOCK, BLOCK));
        for movable in [first, third] {
            assert!(machine.take_offline(movable));
            machine.online(movable, OnlineType::Movable);
        }
        let whole =
            |number: u64| AllocRequest::frames(BLOCK).at(range(number * BLOCK, BLOCK).start());
        let [leaving, beside] = [machine.alloc(whole(0).movable()), machine.alloc(whole(1))];
        // The hints of both CPUs are other pageblocks.
        let single = AllocRequest::frames(1);
        let hints = [machine.alloc(single), machine.run_as(1, |m| m.alloc(single.movable()))];
        let (slow, rest) = machine.split(leaving, 1);
        let other_thread = machine.spawn_on(1, move |machine| machine.free(slow));
        machine.free(rest);
        let is_offline = machine.take_offline(first);
        if is_offline {
            machine.online(first, OnlineType::Kernel);
        }
        let mine = machine.try_alloc(whole(0)).ok();
        other_thread.join().unwrap();
        let (freed, beside) = machine.split(beside, 1);
        machine.free(freed);
        machine.check();
        let held = hints.into_iter().chain(mine).chain([beside]);
        held.for_each(|held| machine.free(held));
        machine.check_empty();
    });
}

/// The free of a pageblock may publish it late: after the other pageblock of the section has
/// changed its zone. Both must be found.
fn a_late_publish(before: OnlineType, after: OnlineType) {
    model(move || {
        let machine = Machine::new(2);
        let second = range(BLOCK, BLOCK);
        let first = machine.alloc(AllocRequest::frames(BLOCK).at(range(0, 1).start()));
        assert!(machine.take_offline(second));
        machine.online(second, before);
        // The hint of both CPUs is another section.
        for cpu in [0, 1] {
            let other_block = AllocRequest::frames(BLOCK).at(range(2 * BLOCK, 1).start());
            let other_block = machine.run_as(cpu, |machine| machine.alloc(other_block));
            machine.run_as(cpu, |machine| machine.free(other_block));
        }
        let other_thread = machine.spawn_on(1, move |machine| machine.free(first));
        assert!(machine.take_offline(second));
        machine.online(second, after);
        other_thread.join().unwrap();
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
