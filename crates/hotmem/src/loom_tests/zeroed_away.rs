//! Models memory that is known to be zero, and that the allocator does not have for a time: it is
//! lent, offline or removed, or it holds bitmaps. Each allocation of a model checks the engine's
//! answer.

use super::instance::{BLOCK, Held, ONE_BLOCK, ONE_FRAME, SECTION, range};
use super::poison::{check_quarantined, poison};
use super::{Instance, large_model, model};
use crate::addr::PfnRange;
use crate::frames::AllocRequest;
use crate::hooks::NoHooks;
use crate::hotplug::OnlineType;
use std::sync::Arc;

/// Returns an instance in which only the second pageblock is online, and is allocated. The first one
/// was added as zero. Also returns the two pageblocks.
fn with_zero_memory_offline() -> (Arc<Instance>, PfnRange, Held) {
    let instance = Instance::new(1);
    let (block, second_block) = (range(0, BLOCK), instance.alloc_second_block());
    assert!(instance.take_offline(block));
    remove(&instance, block);
    let mut hotplug = instance.hotplug();
    let addition = hotplug.prepare_add(block).unwrap().zeroed();
    instance.discard(block);
    hotplug.commit_add(addition);
    (instance, block, second_block)
}

/// Removes memory that is offline. The platform may write to it.
fn remove(instance: &Instance, range: PfnRange) {
    let mut hotplug = instance.hotplug();
    let removal = hotplug.prepare_remove(range).unwrap();
    instance.overwrite(range);
    hotplug.commit_remove(removal);
}

/// Puts `block` online while another CPU makes `request`, and checks all memory.
fn online_during(
    request: AllocRequest,
    instance: &Arc<Instance>,
    block: PfnRange,
    second_block: Held,
) {
    let other_thread = instance.spawn_on(1, move |instance| {
        if let Ok(held) = instance.try_alloc(request) {
            instance.free(held);
        }
    });
    instance.online(block, OnlineType::Kernel);
    other_thread.join().unwrap();
    instance.check();
    instance.free(second_block);
    instance.check();
}

#[test]
fn memory_that_was_added_as_zero_comes_online_during_an_allocation() {
    model(|| {
        let (instance, block, second_block) = with_zero_memory_offline();
        online_during(ONE_BLOCK, &instance, block, second_block);
    });
}

/// A search finds the memory only after it has got a path. A request for a place needs no path, so it
/// may claim the memory as soon as it is published.
#[test]
fn memory_that_was_added_as_zero_comes_online_during_an_allocation_at_its_place() {
    model(|| {
        let (instance, block, second_block) = with_zero_memory_offline();
        online_during(ONE_BLOCK.at(block.start()), &instance, block, second_block);
    });
}

#[test]
fn memory_that_was_added_as_zero_comes_online_with_poison_in_it() {
    model(|| {
        let (instance, block, second_block) = with_zero_memory_offline();
        assert!(poison(&instance, 1).is_some());
        let other_thread = instance.spawn_on(1, |instance| instance.try_alloc(ONE_FRAME).ok());
        instance.online(block, OnlineType::Kernel);
        let held = other_thread.join().unwrap();
        instance.validate();
        held.into_iter().chain([second_block]).for_each(|held| instance.free(held));
        check_quarantined(&instance, 1);
    });
}

#[test]
fn memory_that_was_added_as_zero_is_removed_and_added_again() {
    model(|| {
        let (instance, block, second_block) = with_zero_memory_offline();
        remove(&instance, block);
        instance.hotplug().add(block).unwrap();
        online_during(ONE_BLOCK, &instance, block, second_block);
    });
}

#[test]
fn a_removal_of_memory_that_was_added_as_zero_is_abandoned() {
    model(|| {
        let (instance, block, second_block) = with_zero_memory_offline();
        let mut hotplug = instance.hotplug();
        let removal = hotplug.prepare_remove(block).unwrap();
        instance.overwrite(block);
        hotplug.abandon_remove(removal, &mut NoHooks);
        online_during(ONE_BLOCK, &instance, block, second_block);
    });
}

#[test]
fn a_zero_pageblock_goes_offline_during_an_allocation_and_comes_back() {
    large_model(|| {
        let instance = Instance::new(1);
        let (block, second_block) = (range(0, BLOCK), instance.alloc_second_block());
        assert!(instance.zero_block(0));
        let other_thread = instance.spawn_on(1, |instance| instance.try_alloc(ONE_FRAME).ok());
        if instance.take_offline(block) {
            instance.overwrite(block);
            instance.online(block, OnlineType::Kernel);
        }
        let held = other_thread.join().unwrap();
        instance.check();
        held.into_iter().chain([second_block]).for_each(|held| instance.free(held));
        instance.check_empty();
    });
}

#[test]
fn a_lent_pageblock_comes_back_as_zero_during_an_allocation() {
    model(|| {
        let instance = Instance::new(1);
        let second_block = instance.alloc_second_block();
        let lent = instance.alloc(ONE_BLOCK);
        let block = lent.range();
        instance.call().lend(block, |_| true).unwrap();
        instance.discard(block);
        instance.call().end_lending(block);
        let other_thread = instance.spawn_on(1, |instance| {
            if let Ok(held) = instance.try_alloc(ONE_BLOCK) {
                instance.free(held);
            }
        });
        instance.free_zeroed(lent);
        other_thread.join().unwrap();
        instance.check();
        instance.free(second_block);
        instance.check_empty();
    });
}

#[test]
fn a_lent_frame_comes_back_beside_zero_frames() {
    model(|| {
        let instance = Instance::new(1);
        let second_block = instance.alloc_second_block();
        assert!(instance.zero_block(0));
        let lent = instance.alloc_known_zero(ONE_FRAME);
        instance.call().lend(lent.range(), |_| true).unwrap();
        let other_thread = instance.spawn_on(1, |instance| instance.try_alloc(ONE_FRAME).ok());
        instance.overwrite(lent.range());
        instance.call().end_lending(lent.range());
        instance.free(lent);
        let held = other_thread.join().unwrap();
        instance.check();
        held.into_iter().chain([second_block]).for_each(|held| instance.free(held));
        instance.check_empty();
    });
}

#[test]
fn self_hosted_bitmaps_of_a_zero_pageblock_are_dropped() {
    large_model(|| {
        let instance = Instance::without_bitmaps(1);
        // The second pageblock holds the bitmaps. The first is zero when it is divided.
        let a = instance.alloc(ONE_FRAME.at(range(BLOCK, 1).start()));
        assert!(instance.zero_block(0));
        let b = instance.alloc(ONE_FRAME.at(range(0, 1).start()));
        [a, b].into_iter().for_each(|held| instance.free(held));
        let other_thread = instance.spawn_on(1, |instance| instance.try_alloc(ONE_FRAME).ok());
        if let Ok(token) = instance.call().isolate_range(range(0, SECTION)) {
            token.drop_bitmaps();
            if token.in_use().is_none() {
                instance.overwrite(token.range());
                assert!(instance.add_lasting_bitmaps(0));
            }
            token.release();
        }
        let held = other_thread.join().unwrap();
        instance.check();
        held.into_iter().for_each(|held| instance.free(held));
        instance.check();
    });
}
