//! Models the installation of the first bitmaps of a section, and the drop of self-hosted bitmaps.

use super::machine::{BLOCK, SECTION, range};
use super::{Machine, large_model, model};
use crate::frames::AllocRequest;
use crate::hotplug::OnlineType;
use std::sync::Arc;

const ONE_FRAME: AllocRequest = AllocRequest::frames(1);
const ONE_BLOCK: AllocRequest = AllocRequest::frames(BLOCK);

#[test]
fn first_splits_race() {
    two_first_splits(|| Machine::without_bitmaps(1));
}

#[test]
fn first_splits_of_boot_memory_race() {
    two_first_splits(|| Machine::boot_without_bitmaps(1));
}

fn two_first_splits(machine: fn() -> Arc<Machine>) {
    large_model(1, 3, move || {
        let machine = machine();
        let other_thread = machine.spawn_on(1, |machine| machine.alloc(ONE_FRAME));
        let mine = machine.alloc(ONE_FRAME);
        let other = other_thread.join().unwrap();
        machine.check();
        machine.free(mine);
        machine.free(other);
        machine.check();
    });
}

#[test]
fn a_first_division_races_with_a_first_whole_allocation() {
    model(|| {
        let machine = Machine::without_bitmaps(2);
        let other_thread = machine.spawn_on(1, |machine| machine.alloc(ONE_BLOCK));
        let mine = machine.alloc(ONE_FRAME);
        let other = other_thread.join().unwrap();
        machine.check();
        machine.free(mine);
        machine.free(other);
        machine.check();
    });
}

#[test]
fn self_hosted_bitmaps_are_dropped_when_no_other_frame_is_in_use() {
    model(|| {
        let machine = Machine::without_bitmaps(1);
        let [a] = machine.alloc_singles();
        let token = machine.isolate_range(range(0, SECTION)).unwrap();
        let other_thread = machine.spawn_on(1, |machine| machine.free(a));
        token.drop_bitmaps();
        if token.in_use().is_none() {
            machine.overwrite(token.range());
        }
        other_thread.join().unwrap();
        token.drop_bitmaps();
        assert_eq!(token.in_use(), None);
        machine.overwrite(token.range());
        token.release();
        machine.check();
    });
}

#[test]
fn self_hosted_bitmaps_are_dropped_while_the_rest_of_the_section_comes_online() {
    large_model(1, 3, || {
        let machine = Machine::without_bitmaps(1);
        let [first, second] = [range(0, BLOCK), range(BLOCK, BLOCK)];
        assert!(machine.take_offline(second));
        let [a] = machine.alloc_singles();
        machine.free(a);
        // The bitmaps lie in the first pageblock, in which no other frame is in use.
        let other_thread = machine.spawn_on(1, move |machine| {
            machine.online(second, OnlineType::Kernel);
            machine.try_alloc(ONE_FRAME).ok()
        });
        if let Ok(token) = machine.isolate_range(first) {
            if token.in_use().is_none() {
                machine.overwrite(first);
            }
            token.release();
        }
        let held = other_thread.join().unwrap();
        machine.check();
        held.into_iter().for_each(|held| machine.free(held));
        machine.check();
    });
}

#[test]
fn self_hosted_bitmaps_are_dropped_during_an_allocation() {
    large_model(1, 3, || {
        let machine = Machine::without_bitmaps(1);
        let [a] = machine.alloc_singles();
        machine.free(a);
        // The pageblock stays divided, because it is CPU 0's hint, and its last frame holds the
        // bitmaps.
        let other_thread = machine.spawn_on(0, |machine| machine.try_alloc(ONE_FRAME));
        if let Ok(token) = machine.isolate_range(range(0, SECTION)) {
            token.drop_bitmaps();
            if token.in_use().is_none() {
                machine.overwrite(token.range());
            }
            token.release();
        }
        let held = other_thread.join().unwrap();
        machine.check();
        held.into_iter().for_each(|held| machine.free(held));
        machine.check();
    });
}
