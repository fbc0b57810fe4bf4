//! Models memory that goes offline, and comes online again in another zone, during another
//! operation.

use super::instance::{BLOCK, range};
use super::{Instance, Preemptions, check_model, is_deep, model, model_preemptions};
use crate::frames::AllocRequest;
use crate::hotplug::OnlineType;

/// Checks that `request`, which is not movable, gets no memory that has become movable.
fn check_that_no_movable_memory_is_allocated(request: AllocRequest) {
    model_preemptions(1, move || {
        let instance = Instance::new(1);
        let second = range(BLOCK, BLOCK);
        let first = instance.alloc(AllocRequest::frames(BLOCK));
        let other_thread = instance.spawn_on(1, move |instance| {
            let is_offline = instance.take_offline(second);
            if is_offline {
                instance.online(second, OnlineType::Movable);
            }
            is_offline
        });
        let main_held = instance.try_alloc(request).ok();
        let is_movable = other_thread.join().unwrap();
        assert!(!is_movable || main_held.is_none());
        instance.check();
        main_held.into_iter().chain([first]).for_each(|held| instance.free(held));
        instance.check_empty();
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
        let instance = Instance::new(1);
        let second = range(BLOCK, BLOCK);
        let first = instance.alloc(AllocRequest::frames(BLOCK));
        // The pageblock stays divided, because it is CPU 0's hint.
        let [a] = instance.alloc_singles();
        instance.free(a);
        let other_thread = instance.spawn_on(1, move |instance| {
            let is_offline = instance.take_offline(second);
            if is_offline {
                instance.online(second, OnlineType::Movable);
                // This allocation makes twenty times as many interleavings, which take a minute.
                if is_deep() {
                    let movable = instance.try_alloc(AllocRequest::frames(1).movable());
                    movable.into_iter().for_each(|held| instance.free(held));
                }
            }
            is_offline
        });
        let main_held = instance.try_alloc(AllocRequest::frames(1)).ok();
        let is_movable = other_thread.join().unwrap();
        assert!(!is_movable || main_held.is_none());
        instance.check();
        main_held.into_iter().chain([first]).for_each(|held| instance.free(held));
        instance.check_empty();
    });
}

/// The free of a frame may set the `partial` bit of its pageblock late: after the pageblock has
/// gone offline and come online as kernel memory. The other pageblock of the section is kernel
/// memory, and searches must still find its free frame.
#[test]
fn a_late_partial_bit_races_with_a_change_of_zone() {
    // A model of one preemption takes too long for each change.
    check_model(Preemptions { usual: 0, deep: 3 }, || {
        let instance = Instance::new(2);
        let [first, third] = [0, 2].map(|number| range(number * BLOCK, BLOCK));
        for movable in [first, third] {
            assert!(instance.take_offline(movable));
            instance.online(movable, OnlineType::Movable);
        }
        let whole =
            |number: u64| AllocRequest::frames(BLOCK).at(range(number * BLOCK, BLOCK).start());
        let [leaving, beside] = [instance.alloc(whole(0).movable()), instance.alloc(whole(1))];
        // The hints of both CPUs are other pageblocks.
        let single = AllocRequest::frames(1);
        let hints = [instance.alloc(single), instance.run_as(1, |m| m.alloc(single.movable()))];
        let (slow, rest) = instance.split(leaving, 1);
        let other_thread = instance.spawn_on(1, move |instance| instance.free(slow));
        instance.free(rest);
        let is_offline = instance.take_offline(first);
        if is_offline {
            instance.online(first, OnlineType::Kernel);
        }
        let main_held = instance.try_alloc(whole(0)).ok();
        other_thread.join().unwrap();
        let (freed, beside) = instance.split(beside, 1);
        instance.free(freed);
        instance.check();
        let held = hints.into_iter().chain(main_held).chain([beside]);
        held.for_each(|held| instance.free(held));
        instance.check_empty();
    });
}

/// The free of a pageblock may publish it late: after the other pageblock of the section has
/// changed its zone, from that of `before` to that of `after`. Searches must find both.
fn a_late_publish(before: OnlineType, after: OnlineType) {
    model(move || {
        let instance = Instance::new(2);
        let second = range(BLOCK, BLOCK);
        let first = instance.alloc(AllocRequest::frames(BLOCK).at(range(0, 1).start()));
        assert!(instance.take_offline(second));
        instance.online(second, before);
        // The hint of both CPUs is another section.
        for cpu in [0, 1] {
            let other_block = AllocRequest::frames(BLOCK).at(range(2 * BLOCK, 1).start());
            let other_block = instance.run_as(cpu, |instance| instance.alloc(other_block));
            instance.run_as(cpu, |instance| instance.free(other_block));
        }
        let other_thread = instance.spawn_on(1, move |instance| instance.free(first));
        assert!(instance.take_offline(second));
        instance.online(second, after);
        other_thread.join().unwrap();
        instance.check();
        instance.check_empty();
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
