//! Models the installation of the first bitmaps of a section, and the drop of self-hosted bitmaps.

use super::instance::{BLOCK, ONE_BLOCK, ONE_FRAME, SECTION, range};
use super::{Instance, large_model, model};
use crate::hotplug::OnlineType;
use std::sync::Arc;

#[test]
fn first_divisions_race() {
    race_two_first_divisions(|| Instance::without_bitmaps(1));
}

#[test]
fn first_divisions_of_boot_memory_race() {
    race_two_first_divisions(|| Instance::boot_without_bitmaps(1));
}

fn race_two_first_divisions(instance: fn() -> Arc<Instance>) {
    large_model(move || {
        let instance = instance();
        instance.race_allocations(ONE_FRAME, 1, ONE_FRAME);
        instance.check();
    });
}

#[test]
fn a_first_division_races_with_a_first_whole_allocation() {
    large_model(|| {
        let instance = Instance::without_bitmaps(2);
        instance.race_allocations(ONE_FRAME, 1, ONE_BLOCK);
        instance.check();
    });
}

#[test]
fn self_hosted_bitmaps_are_dropped_when_no_other_frame_is_in_use() {
    model(|| {
        let instance = Instance::without_bitmaps(1);
        let [a] = instance.alloc_singles();
        let token = instance.call().isolate_range(range(0, SECTION)).unwrap();
        let other_thread = instance.spawn_on(1, |instance| instance.free(a));
        token.drop_bitmaps();
        if token.in_use().is_none() {
            instance.overwrite(token.range());
        }
        other_thread.join().unwrap();
        token.drop_bitmaps();
        assert_eq!(token.in_use(), None);
        instance.overwrite(token.range());
        token.release();
        instance.check();
    });
}

#[test]
fn self_hosted_bitmaps_are_dropped_while_the_rest_of_the_section_comes_online() {
    large_model(|| {
        let instance = Instance::without_bitmaps(1);
        let [first, second] = [range(0, BLOCK), range(BLOCK, BLOCK)];
        assert!(instance.take_offline(second));
        let [a] = instance.alloc_singles();
        instance.free(a);
        // The bitmaps lie in the first pageblock, in which no other frame is in use.
        let other_thread = instance.spawn_on(1, move |instance| {
            instance.online(second, OnlineType::Kernel);
            instance.try_alloc(ONE_FRAME).ok()
        });
        if let Ok(token) = instance.call().isolate_range(first) {
            if token.in_use().is_none() {
                instance.overwrite(first);
            }
            token.release();
        }
        let held = other_thread.join().unwrap();
        instance.check();
        held.into_iter().for_each(|held| instance.free(held));
        instance.check();
    });
}

#[test]
fn self_hosted_bitmaps_are_dropped_during_an_allocation() {
    large_model(|| {
        let instance = Instance::without_bitmaps(1);
        let [a] = instance.alloc_singles();
        instance.free(a);
        // The pageblock stays divided, because it is CPU 0's hint, and its last frame holds the
        // bitmaps.
        let other_thread = instance.spawn_on(0, |instance| instance.try_alloc(ONE_FRAME));
        if let Ok(token) = instance.call().isolate_range(range(0, SECTION)) {
            token.drop_bitmaps();
            if token.in_use().is_none() {
                instance.overwrite(token.range());
            }
            token.release();
        }
        let held = other_thread.join().unwrap();
        instance.check();
        held.into_iter().for_each(|held| instance.free(held));
        instance.check();
    });
}

/// A first division beside this memory makes the bitmaps of all memory that has none.
#[test]
fn bitmaps_are_installed_while_self_hosted_bitmaps_are_hidden() {
    model(|| {
        let instance = Instance::without_bitmaps(1);
        let [a] = instance.alloc_singles();
        let other_thread = instance.spawn_on(1, |instance| instance.add_lasting_bitmaps(0));
        let section = instance.section(0);
        let bitmaps = section.bitmaps.pointer_of(0);
        let hidden = bitmaps.hide().expect("no boot memory can hold the bitmaps");
        bitmaps.restore(hidden);
        assert!(!other_thread.join().unwrap());
        instance.check();
        instance.free(a);
        instance.check();
    });
}
