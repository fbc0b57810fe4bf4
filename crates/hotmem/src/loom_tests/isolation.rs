//! Models an isolation that runs while other CPUs allocate, free or isolate.

use super::machine::{BLOCK, Held, range};
use super::{Machine, large_model, model};
use crate::frames::AllocRequest;
use crate::hotplug::OnlineType;
use crate::isolate::Isolation;
use crate::range_error::{RangeError, RangeErrorKind};
use crate::sync::Ordering;
use loom::thread::JoinHandle;

pub(super) const ONE_FRAME: AllocRequest = AllocRequest::frames(1);
pub(super) const ONE_BLOCK: AllocRequest = AllocRequest::frames(BLOCK);

/// Overwrites isolated memory, if no frame of it is in use. Returns whether it has overwritten the
/// memory.
fn overwrite_if_drained<P: crate::platform::Platform>(
    machine: &Machine,
    token: &Isolation<'_, P>,
) -> bool {
    let drained = token.in_use().is_none();
    if drained {
        machine.overwrite(token.range());
    }
    drained
}

/// Isolates the first pageblock, overwrites it if no frame of it is in use, and releases it.
fn isolate_and_release(machine: &Machine) {
    match machine.isolate_range(range(0, BLOCK)) {
        Ok(token) => {
            overwrite_if_drained(machine, &token);
            token.release();
        }
        Err(error) => {
            assert_eq!(error, RangeError { range: range(0, BLOCK), kind: RangeErrorKind::Busy })
        }
    }
}

/// Isolates the first pageblock while `frees` free all its frames, and overwrites it if no frame of
/// it is in use. After the frees have ended, no frame of it may be in use. Then frees
/// `second_block`, the only frames that are still in use.
fn isolate_during<const N: usize>(
    machine: &Machine,
    frees: [JoinHandle<()>; N],
    second_block: Held,
) {
    let token = machine.isolate_range(range(0, BLOCK));
    let _ = token.as_ref().map(|token| overwrite_if_drained(machine, token));
    frees.into_iter().for_each(|free| free.join().unwrap());
    machine.validate();
    if let Ok(token) = token {
        assert!(overwrite_if_drained(machine, &token));
        token.release();
    }
    machine.free(second_block);
    machine.check_empty();
}

/// Allocates the second pageblock as a whole, so that only the first pageblock is free.
pub(super) fn alloc_second_block(machine: &Machine) -> Held {
    machine.alloc(ONE_BLOCK.at(range(BLOCK, 1).start()))
}

#[test]
fn isolation_races_with_a_split() {
    model(|| {
        let machine = Machine::new(1);
        let other_thread = machine.spawn_on(1, isolate_and_release);
        let mine = machine.alloc(ONE_FRAME);
        other_thread.join().unwrap();
        machine.check();
        machine.free(mine);
        machine.check_empty();
    });
}

#[test]
fn isolation_races_with_a_small_allocation() {
    model(|| {
        let machine = Machine::new(1);
        let second_block = alloc_second_block(&machine);
        let [a] = machine.alloc_singles();
        let other_thread = machine.spawn_on(1, |machine| machine.try_alloc(ONE_FRAME).ok());
        let token = machine.isolate_range(range(0, BLOCK)).unwrap();
        // No frame of the pageblock is allocated after the isolation, so the number of frames in
        // use can only fall from now on.
        let in_use = token.frames_in_use();
        let other_held = other_thread.join().unwrap();
        machine.validate();
        assert!(token.frames_in_use() <= in_use);
        machine.free(a);
        assert!(overwrite_if_drained(&machine, &token) == other_held.is_none());
        token.release();
        machine.check();
        other_held.into_iter().chain([second_block]).for_each(|held| machine.free(held));
        machine.check_empty();
    });
}

#[test]
fn isolation_races_with_a_whole_allocation() {
    model(|| {
        let machine = Machine::new(1);
        let second_block = alloc_second_block(&machine);
        let other_thread = machine.spawn_on(1, isolate_and_release);
        let mine = machine.try_alloc(ONE_BLOCK);
        other_thread.join().unwrap();
        machine.check();
        mine.into_iter().chain([second_block]).for_each(|held| machine.free(held));
        machine.check_empty();
    });
}

#[test]
fn isolation_races_with_the_last_free() {
    model(|| {
        let machine = Machine::new(1);
        let second_block = alloc_second_block(&machine);
        let [a] = machine.alloc_singles();
        let other_thread = machine.spawn_on(1, |machine| machine.free(a));
        isolate_during(&machine, [other_thread], second_block);
    });
}

#[test]
fn isolation_races_with_two_frees() {
    large_model(1, 3, || {
        let machine = Machine::new(1);
        let second_block = alloc_second_block(&machine);
        let [a, b] = machine.alloc_singles();
        let other_thread = machine.spawn_on(0, |machine| machine.free(a));
        let another = machine.spawn_on(1, |machine| machine.free(b));
        isolate_during(&machine, [other_thread, another], second_block);
    });
}

#[test]
fn isolation_races_with_a_whole_free() {
    model(|| {
        let machine = Machine::new(1);
        let second_block = alloc_second_block(&machine);
        let whole = machine.alloc(ONE_BLOCK);
        let other_thread = machine.spawn_on(1, |machine| machine.free(whole));
        isolate_during(&machine, [other_thread], second_block);
    });
}

/// Isolates the first pageblock while `free` frees it as a whole. The second pageblock is free.
fn isolate_during_a_whole_free(free: impl FnOnce(&Machine, Held) + 'static) {
    let machine = Machine::new(1);
    let whole = machine.alloc(ONE_BLOCK.at(range(0, 1).start()));
    let other_thread = machine.spawn_on(1, |machine| free(machine, whole));
    let token = machine.isolate_range(range(0, BLOCK));
    let _ = token.as_ref().map(|token| overwrite_if_drained(&machine, token));
    other_thread.join().unwrap();
    machine.validate();
    if let Ok(token) = token {
        assert!(overwrite_if_drained(&machine, &token));
        token.release();
    }
    machine.check_empty();
}

#[test]
fn isolation_races_with_a_whole_free_beside_a_free_pageblock() {
    model(|| isolate_during_a_whole_free(|machine, whole| machine.free(whole)));
}

#[test]
fn isolation_races_with_a_whole_free_and_the_next_allocation() {
    model(|| {
        isolate_during_a_whole_free(|machine, whole| {
            machine.free(whole);
            let next = machine.alloc_unless_busy(ONE_BLOCK);
            next.into_iter().for_each(|held| machine.free(held));
        });
    });
}

#[test]
fn isolation_races_with_a_whole_allocation_of_a_freed_pageblock() {
    model(|| {
        let machine = Machine::new(1);
        // The pageblock keeps its block state.
        let whole = machine.alloc(ONE_BLOCK.at(range(0, 1).start()));
        machine.free(whole);
        let other_thread = machine.spawn_on(1, isolate_and_release);
        let mine = machine.alloc_unless_busy(ONE_BLOCK);
        other_thread.join().unwrap();
        machine.check();
        mine.into_iter().for_each(|held| machine.free(held));
        machine.check_empty();
    });
}

#[test]
fn isolation_races_with_a_whole_free_and_another_isolation() {
    model(|| {
        isolate_during_a_whole_free(|machine, whole| {
            machine.free(whole);
            if let Ok(token) = machine.isolate_range(range(0, BLOCK)) {
                overwrite_if_drained(machine, &token);
                token.release();
            }
        });
    });
}

#[test]
fn isolation_races_with_a_hold() {
    model(|| {
        let machine = Machine::new(1);
        let second_block = alloc_second_block(&machine);
        let [a] = machine.alloc_singles();
        // This free holds the words of the bitmap, because it may be the last free.
        let other_thread = machine.spawn_on(1, |machine| machine.free(a));
        let token = machine.isolate_range(range(0, BLOCK));
        other_thread.join().unwrap();
        machine.validate();
        let _ = token.map(Isolation::release);
        machine.free(second_block);
        machine.check_empty();
    });
}

#[test]
fn isolation_races_with_a_free_of_a_part() {
    model(|| {
        let machine = Machine::new(1);
        let second_block = alloc_second_block(&machine);
        let (low, high) = machine.split(machine.alloc(ONE_BLOCK), 1);
        let other_thread = machine.spawn_on(1, |machine| machine.free(low));
        let token = machine.isolate_range(range(0, BLOCK)).unwrap();
        other_thread.join().unwrap();
        machine.validate();
        assert!(machine.try_alloc(ONE_FRAME).is_err());
        token.release();
        machine.check();
        [high, second_block].into_iter().for_each(|held| machine.free(held));
        machine.check_empty();
    });
}

#[test]
fn isolations_race() {
    model(|| {
        let machine = Machine::new(1);
        let [a] = machine.alloc_singles();
        let block = a.range().align_outward(BLOCK);
        let isolate = move |machine: &Machine| match machine.isolate_range(block) {
            Ok(token) => {
                assert!(!overwrite_if_drained(machine, &token));
                token.release();
                true
            }
            Err(error) => {
                assert_eq!(error, RangeError { range: block, kind: RangeErrorKind::Isolated });
                false
            }
        };
        let other_thread = machine.spawn_on(1, isolate);
        assert!(isolate(&machine) | other_thread.join().unwrap());
        machine.free(a);
        machine.check_empty();
    });
}

#[test]
fn isolations_race_for_a_free_pageblock() {
    model(|| {
        let machine = Machine::new(1);
        let isolate = move |machine: &Machine| match machine.isolate_range(range(0, BLOCK)) {
            Ok(token) => {
                assert!(overwrite_if_drained(machine, &token));
                token.release();
                true
            }
            Err(_) => false,
        };
        let other_thread = machine.spawn_on(1, isolate);
        assert!(isolate(&machine) | other_thread.join().unwrap());
        machine.check_empty();
    });
}

#[test]
fn isolation_races_with_descriptors_that_go_offline() {
    model(|| {
        let machine = Machine::new(1);
        let descriptor_block = range(0, BLOCK);
        assert!(machine.take_offline(descriptor_block));
        machine.section(0).block(0).unwrap().state().set_holds_descriptors(true);
        machine.online(descriptor_block, OnlineType::Kernel);
        let other_thread = machine.spawn_on(1, |machine| machine.take_offline(range(0, BLOCK)));
        let token = machine.isolate_range(descriptor_block);
        let offline = other_thread.join().unwrap();
        let online = machine.section(0).online.load(Ordering::Relaxed) & 1;
        assert_eq!(offline, online == 0);
        assert!(!offline || token.is_err(), "a pageblock that is not online was isolated");
        let _ = token.map(Isolation::release);
        if offline {
            machine.online(descriptor_block, OnlineType::Kernel);
        }
        machine.validate();
        machine.isolate_range(descriptor_block).unwrap().release();
    });
}

#[test]
fn isolation_races_with_a_split_pageblock_that_is_all_free() {
    model(|| {
        let machine = Machine::new(1);
        let second_block = alloc_second_block(&machine);
        let [a] = machine.alloc_singles();
        machine.free(a);
        let block = machine.section(0).block(0).unwrap();
        assert!(
            block.lasting_bitmap().unwrap().is_all_free(),
            "the pageblock stays divided, because it is CPU 0's hint"
        );
        let other_thread = machine.spawn_on(1, isolate_and_release);
        let mine = machine.try_alloc(ONE_FRAME);
        other_thread.join().unwrap();
        machine.check();
        mine.into_iter().chain([second_block]).for_each(|held| machine.free(held));
        machine.check_empty();
    });
}

#[test]
fn isolation_races_with_an_allocation_and_its_free() {
    model(|| {
        let machine = Machine::new(1);
        let second_block = alloc_second_block(&machine);
        let [a] = machine.alloc_singles();
        machine.free(a);
        let other_thread = machine.spawn_on(1, isolate_and_release);
        let mine = machine.try_alloc(ONE_FRAME);
        mine.into_iter().for_each(|held| machine.free(held));
        other_thread.join().unwrap();
        machine.free(second_block);
        machine.check_empty();
    });
}

#[test]
fn an_isolation_of_two_pageblocks_is_undone() {
    model(|| {
        let machine = Machine::new(1);
        let held = alloc_second_block(&machine);
        let both = range(0, 2 * BLOCK);
        let first = machine.isolate_range(range(BLOCK, BLOCK)).unwrap();
        let other_thread = machine.spawn_on(1, |machine| {
            let mine = machine.try_alloc(ONE_FRAME);
            mine.into_iter().for_each(|held| machine.free(held));
        });
        assert!(machine.isolate_range(both).is_err());
        other_thread.join().unwrap();
        first.release();
        machine.free(held);
        machine.check_empty();
    });
}

#[test]
fn reported_memory_is_allocated() {
    model(|| {
        let machine = Machine::new(1);
        let second_block = alloc_second_block(&machine);
        let token = machine.isolate_range(range(0, BLOCK)).unwrap();
        let other_thread = machine.spawn_on(1, |machine| machine.try_alloc(ONE_FRAME).ok());
        machine.overwrite(token.range());
        token.mark_reported().unwrap();
        let other_held = other_thread.join().unwrap();
        let reported = machine.counts().reported;
        assert_eq!(reported, if other_held.is_some() { 0 } else { BLOCK });
        machine.check();
        other_held.into_iter().chain([second_block]).for_each(|held| machine.free(held));
        machine.check_empty();
    });
}

#[test]
fn taking_offline_races_with_an_allocation_and_a_free() {
    large_model(1, 3, || {
        let machine = Machine::new(1);
        let [a] = machine.alloc_singles();
        let block = a.range().align_outward(BLOCK);
        let other_thread = machine.spawn_on(1, |machine| {
            machine.free(a);
            machine.try_alloc(ONE_FRAME).ok()
        });
        let offline = machine.take_offline(block);
        let held = other_thread.join().unwrap();
        if offline {
            assert!(held.iter().all(|held| !block.overlaps(held.range())));
            machine.overwrite(block);
            machine.online(block, OnlineType::Kernel);
        }
        machine.check();
        held.into_iter().for_each(|held| machine.free(held));
        machine.check_empty();
    });
}
