//! Models an isolation that runs while other CPUs allocate, free or isolate.

use super::instance::{BLOCK, Held, ONE_BLOCK, ONE_FRAME, range};
use super::{Instance, large_model, model};
use crate::hotplug::OnlineType;
use crate::isolate::Isolation;
use crate::range_error::{RangeError, RangeErrorKind};
use crate::sync::Ordering;
use loom::thread::JoinHandle;

/// Overwrites isolated memory, if no frame of it is in use. Returns whether it has overwritten the
/// memory.
fn overwrite_if_drained<P: crate::platform::Platform>(
    instance: &Instance,
    token: &Isolation<'_, P>,
) -> bool {
    let drained = token.in_use().is_none();
    if drained {
        instance.overwrite(token.range());
    }
    drained
}

/// Isolates the first pageblock, overwrites it if no frame of it is in use, and releases it.
fn isolate_and_release(instance: &Instance) {
    match instance.call().isolate_range(range(0, BLOCK)) {
        Ok(token) => {
            overwrite_if_drained(instance, &token);
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
    instance: &Instance,
    frees: [JoinHandle<()>; N],
    second_block: Held,
) {
    let token = instance.call().isolate_range(range(0, BLOCK));
    let _ = token.as_ref().map(|token| overwrite_if_drained(instance, token));
    frees.into_iter().for_each(|free| free.join().unwrap());
    instance.validate();
    if let Ok(token) = token {
        assert!(overwrite_if_drained(instance, &token));
        token.release();
    }
    instance.free(second_block);
    instance.check_empty();
}

#[test]
fn isolation_races_with_a_split() {
    large_model(|| {
        let instance = Instance::new(1);
        let other_thread = instance.spawn_on(1, isolate_and_release);
        let main_held = instance.alloc(ONE_FRAME);
        other_thread.join().unwrap();
        instance.check();
        instance.free(main_held);
        instance.check_empty();
    });
}

#[test]
fn isolation_races_with_a_small_allocation() {
    model(|| {
        let instance = Instance::new(1);
        let second_block = instance.alloc_second_block();
        let [a] = instance.alloc_singles();
        let other_thread = instance.spawn_on(1, |instance| instance.try_alloc(ONE_FRAME).ok());
        let token = instance.call().isolate_range(range(0, BLOCK)).unwrap();
        // No frame of the pageblock is allocated after the isolation, so the number of frames in
        // use can only fall from now on.
        let in_use = token.frames_in_use();
        let other_held = other_thread.join().unwrap();
        instance.validate();
        assert!(token.frames_in_use() <= in_use);
        instance.free(a);
        assert!(overwrite_if_drained(&instance, &token) == other_held.is_none());
        token.release();
        instance.check();
        other_held.into_iter().chain([second_block]).for_each(|held| instance.free(held));
        instance.check_empty();
    });
}

#[test]
fn isolation_races_with_a_whole_allocation() {
    model(|| {
        let instance = Instance::new(1);
        let second_block = instance.alloc_second_block();
        let other_thread = instance.spawn_on(1, isolate_and_release);
        let main_held = instance.try_alloc(ONE_BLOCK);
        other_thread.join().unwrap();
        instance.check();
        main_held.into_iter().chain([second_block]).for_each(|held| instance.free(held));
        instance.check_empty();
    });
}

#[test]
fn isolation_races_with_the_last_free() {
    model(|| {
        let instance = Instance::new(1);
        let second_block = instance.alloc_second_block();
        let [a] = instance.alloc_singles();
        let other_thread = instance.spawn_on(1, |instance| instance.free(a));
        isolate_during(&instance, [other_thread], second_block);
    });
}

#[test]
fn isolation_races_with_two_frees() {
    large_model(|| {
        let instance = Instance::new(1);
        let second_block = instance.alloc_second_block();
        let [a, b] = instance.alloc_singles();
        let other_thread = instance.spawn_on(0, |instance| instance.free(a));
        let third_thread = instance.spawn_on(1, |instance| instance.free(b));
        isolate_during(&instance, [other_thread, third_thread], second_block);
    });
}

#[test]
fn isolation_races_with_a_whole_free() {
    model(|| {
        let instance = Instance::new(1);
        let second_block = instance.alloc_second_block();
        let block = instance.alloc(ONE_BLOCK);
        let other_thread = instance.spawn_on(1, |instance| instance.free(block));
        isolate_during(&instance, [other_thread], second_block);
    });
}

/// Isolates the first pageblock while `free` frees it as a whole. The second pageblock is free.
fn isolate_during_a_whole_free(free: impl FnOnce(&Instance, Held) + 'static) {
    let instance = Instance::new(1);
    let block = instance.alloc(ONE_BLOCK.at(range(0, 1).start()));
    let other_thread = instance.spawn_on(1, |instance| free(instance, block));
    let token = instance.call().isolate_range(range(0, BLOCK));
    let _ = token.as_ref().map(|token| overwrite_if_drained(&instance, token));
    other_thread.join().unwrap();
    instance.validate();
    if let Ok(token) = token {
        assert!(overwrite_if_drained(&instance, &token));
        token.release();
    }
    instance.check_empty();
}

#[test]
fn isolation_races_with_a_whole_free_beside_a_free_pageblock() {
    model(|| isolate_during_a_whole_free(|instance, block| instance.free(block)));
}

#[test]
fn isolation_races_with_a_whole_free_and_the_next_allocation() {
    model(|| {
        isolate_during_a_whole_free(|instance, block| {
            instance.free(block);
            let next = instance.alloc_unless_busy(ONE_BLOCK);
            next.into_iter().for_each(|held| instance.free(held));
        });
    });
}

#[test]
fn isolation_races_with_a_whole_allocation_of_a_freed_pageblock() {
    model(|| {
        let instance = Instance::new(1);
        // The pageblock keeps its block state.
        let block = instance.alloc(ONE_BLOCK.at(range(0, 1).start()));
        instance.free(block);
        let other_thread = instance.spawn_on(1, isolate_and_release);
        let main_held = instance.alloc_unless_busy(ONE_BLOCK);
        other_thread.join().unwrap();
        instance.check();
        main_held.into_iter().for_each(|held| instance.free(held));
        instance.check_empty();
    });
}

#[test]
fn isolation_races_with_a_whole_free_and_another_isolation() {
    model(|| {
        isolate_during_a_whole_free(|instance, block| {
            instance.free(block);
            if let Ok(token) = instance.call().isolate_range(range(0, BLOCK)) {
                overwrite_if_drained(instance, &token);
                token.release();
            }
        });
    });
}

#[test]
fn isolation_races_with_a_hold() {
    model(|| {
        let instance = Instance::new(1);
        let second_block = instance.alloc_second_block();
        let [a] = instance.alloc_singles();
        // This free holds the words of the bitmap, because it may be the last free.
        let other_thread = instance.spawn_on(1, |instance| instance.free(a));
        let token = instance.call().isolate_range(range(0, BLOCK));
        other_thread.join().unwrap();
        instance.validate();
        let _ = token.map(Isolation::release);
        instance.free(second_block);
        instance.check_empty();
    });
}

#[test]
fn isolation_races_with_a_free_of_a_part() {
    model(|| {
        let instance = Instance::new(1);
        let second_block = instance.alloc_second_block();
        let (low, high) = instance.split(instance.alloc(ONE_BLOCK), 1);
        let other_thread = instance.spawn_on(1, |instance| instance.free(low));
        let token = instance.call().isolate_range(range(0, BLOCK)).unwrap();
        other_thread.join().unwrap();
        instance.validate();
        assert!(instance.try_alloc(ONE_FRAME).is_err());
        token.release();
        instance.check();
        [high, second_block].into_iter().for_each(|held| instance.free(held));
        instance.check_empty();
    });
}

#[test]
fn isolations_race() {
    model(|| {
        let instance = Instance::new(1);
        let [a] = instance.alloc_singles();
        let block = a.range().align_outward(BLOCK);
        let isolate = move |instance: &Instance| match instance.call().isolate_range(block) {
            Ok(token) => {
                assert!(!overwrite_if_drained(instance, &token));
                token.release();
                true
            }
            Err(error) => {
                assert_eq!(error, RangeError { range: block, kind: RangeErrorKind::Isolated });
                false
            }
        };
        let other_thread = instance.spawn_on(1, isolate);
        assert!(isolate(&instance) | other_thread.join().unwrap());
        instance.free(a);
        instance.check_empty();
    });
}

#[test]
fn isolations_race_for_a_free_pageblock() {
    model(|| {
        let instance = Instance::new(1);
        let isolate =
            move |instance: &Instance| match instance.call().isolate_range(range(0, BLOCK)) {
                Ok(token) => {
                    assert!(overwrite_if_drained(instance, &token));
                    token.release();
                    true
                }
                Err(_) => false,
            };
        let other_thread = instance.spawn_on(1, isolate);
        assert!(isolate(&instance) | other_thread.join().unwrap());
        instance.check_empty();
    });
}

#[test]
fn isolation_races_with_descriptors_that_go_offline() {
    model(|| {
        let instance = Instance::new(1);
        let descriptor_block = range(0, BLOCK);
        assert!(instance.take_offline(descriptor_block));
        instance.section(0).block(0).unwrap().state().set_holds_descriptors(true);
        instance.online(descriptor_block, OnlineType::Kernel);
        let other_thread = instance.spawn_on(1, |instance| instance.take_offline(range(0, BLOCK)));
        let token = instance.call().isolate_range(descriptor_block);
        let offline = other_thread.join().unwrap();
        let online = instance.section(0).online.load(Ordering::Relaxed) & 1;
        assert_eq!(offline, online == 0);
        assert!(!offline || token.is_err(), "a pageblock that is not online was isolated");
        let _ = token.map(Isolation::release);
        if offline {
            instance.online(descriptor_block, OnlineType::Kernel);
        }
        instance.validate();
        instance.call().isolate_range(descriptor_block).unwrap().release();
    });
}

#[test]
fn isolation_races_with_a_split_pageblock_that_is_all_free() {
    model(|| {
        let instance = Instance::new(1);
        let second_block = instance.alloc_second_block();
        let [a] = instance.alloc_singles();
        instance.free(a);
        let block = instance.section(0).block(0).unwrap();
        assert!(
            block.lasting_bitmap().unwrap().is_all_free(),
            "the pageblock stays divided, because it is CPU 0's hint"
        );
        let other_thread = instance.spawn_on(1, isolate_and_release);
        let main_held = instance.try_alloc(ONE_FRAME);
        other_thread.join().unwrap();
        instance.check();
        main_held.into_iter().chain([second_block]).for_each(|held| instance.free(held));
        instance.check_empty();
    });
}

#[test]
fn isolation_races_with_an_allocation_and_its_free() {
    model(|| {
        let instance = Instance::new(1);
        let second_block = instance.alloc_second_block();
        let [a] = instance.alloc_singles();
        instance.free(a);
        let other_thread = instance.spawn_on(1, isolate_and_release);
        let main_held = instance.try_alloc(ONE_FRAME);
        main_held.into_iter().for_each(|held| instance.free(held));
        other_thread.join().unwrap();
        instance.free(second_block);
        instance.check_empty();
    });
}

#[test]
fn an_isolation_of_two_pageblocks_is_undone() {
    model(|| {
        let instance = Instance::new(1);
        let held = instance.alloc_second_block();
        let both = range(0, 2 * BLOCK);
        let first = instance.call().isolate_range(range(BLOCK, BLOCK)).unwrap();
        let other_thread = instance.spawn_on(1, |instance| {
            let main_held = instance.try_alloc(ONE_FRAME);
            main_held.into_iter().for_each(|held| instance.free(held));
        });
        assert!(instance.call().isolate_range(both).is_err());
        other_thread.join().unwrap();
        first.release();
        instance.free(held);
        instance.check_empty();
    });
}

#[test]
fn reported_memory_is_allocated() {
    model(|| {
        let instance = Instance::new(1);
        let second_block = instance.alloc_second_block();
        let token = instance.call().isolate_range(range(0, BLOCK)).unwrap();
        let other_thread = instance.spawn_on(1, |instance| instance.try_alloc(ONE_FRAME).ok());
        instance.overwrite(token.range());
        token.mark_reported().unwrap();
        let other_held = other_thread.join().unwrap();
        let reported = instance.counts().reported;
        assert_eq!(reported, if other_held.is_some() { 0 } else { BLOCK });
        instance.check();
        other_held.into_iter().chain([second_block]).for_each(|held| instance.free(held));
        instance.check_empty();
    });
}

#[test]
fn taking_offline_races_with_an_allocation_and_a_free() {
    large_model(|| {
        let instance = Instance::new(1);
        let [a] = instance.alloc_singles();
        let block = a.range().align_outward(BLOCK);
        let other_thread = instance.spawn_on(1, |instance| {
            instance.free(a);
            instance.try_alloc(ONE_FRAME).ok()
        });
        let offline = instance.take_offline(block);
        let held = other_thread.join().unwrap();
        if offline {
            assert!(held.iter().all(|held| !block.overlaps(held.range())));
            instance.overwrite(block);
            instance.online(block, OnlineType::Kernel);
        }
        instance.check();
        held.into_iter().for_each(|held| instance.free(held));
        instance.check_empty();
    });
}
