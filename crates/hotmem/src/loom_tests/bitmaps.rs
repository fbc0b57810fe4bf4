//! Where a section's bitmaps come from, and when they go.

use super::machine::{BLOCK, SECTION, range};
use super::{Machine, model};
use crate::frames::AllocRequest;
use crate::hotplug::OnlineType;
use std::sync::Arc;

const ONE: AllocRequest = AllocRequest::frames(1);
const WHOLE: AllocRequest = AllocRequest::frames(BLOCK);

#[test]
fn first_splits_meet() {
    two_first_splits(|| Machine::without_bitmaps(1));
}

#[test]
fn first_splits_of_boot_memory_meet() {
    two_first_splits(|| Machine::boot_without_bitmaps(1));
}

fn two_first_splits(machine: fn() -> Arc<Machine>) {
    model(move || {
        let machine = machine();
        let other = machine.on_cpu(1, |machine| machine.alloc(ONE));
        let mine = machine.alloc(ONE);
        let other = other.join().unwrap();
        machine.check();
        machine.free(mine);
        machine.free(other);
        machine.check();
    });
}

#[test]
fn a_first_split_meets_a_first_whole_allocation() {
    model(|| {
        let machine = Machine::without_bitmaps(2);
        let other = machine.on_cpu(1, |machine| machine.alloc(WHOLE));
        let mine = machine.alloc(ONE);
        let other = other.join().unwrap();
        machine.check();
        machine.free(mine);
        machine.free(other);
        machine.check();
    });
}

#[test]
fn bitmaps_go_when_nothing_else_is_left() {
    model(|| {
        let machine = Machine::without_bitmaps(1);
        let [a] = machine.singles();
        let token = machine.isolate(range(0, SECTION)).unwrap();
        let other = machine.on_cpu(1, |machine| machine.free(a));
        token.drop_bitmaps();
        if token.in_use().is_none() {
            machine.overwrite(token.range());
        }
        other.join().unwrap();
        token.drop_bitmaps();
        assert_eq!(token.in_use(), None);
        machine.overwrite(token.range());
        token.release();
        machine.check();
    });
}

#[test]
fn bitmaps_go_while_the_rest_of_the_section_comes_online() {
    model(|| {
        let machine = Machine::without_bitmaps(1);
        let [first, second] = [range(0, BLOCK), range(BLOCK, BLOCK)];
        assert!(machine.take_offline(second));
        let [a] = machine.singles();
        machine.free(a);
        // The bitmaps lie in the first pageblock, and nothing else is in use.
        let other = machine.on_cpu(1, move |machine| {
            machine.online(second, OnlineType::Kernel);
            machine.try_alloc(ONE).ok()
        });
        if let Ok(token) = machine.isolate(first) {
            if token.in_use().is_none() {
                machine.overwrite(first);
            }
            token.release();
        }
        let held = other.join().unwrap();
        machine.check();
        held.into_iter().for_each(|held| machine.free(held));
        machine.check();
    });
}

#[test]
fn bitmaps_go_while_somebody_allocates() {
    model(|| {
        let machine = Machine::without_bitmaps(1);
        let [a] = machine.singles();
        machine.free(a);
        // Split as CPU 0's hint, and its last frame holds the bitmaps.
        let other = machine.on_cpu(0, |machine| machine.try_alloc(ONE));
        if let Ok(token) = machine.isolate(range(0, SECTION)) {
            token.drop_bitmaps();
            if token.in_use().is_none() {
                machine.overwrite(token.range());
            }
            token.release();
        }
        let held = other.join().unwrap();
        machine.check();
        held.into_iter().for_each(|held| machine.free(held));
        machine.check();
    });
}
