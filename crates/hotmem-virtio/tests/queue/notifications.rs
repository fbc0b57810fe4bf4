//! Tests which notifications each side wants, by flags and by indices (2.7.7, 2.7.10).

use crate::{REQUEST, SIZE, feature_sets, push, queue_with};
use hotmem_virtio::queue::{QueueFeatures, Used};
use proptest::prelude::*;

const EVENT_INDEX: QueueFeatures = QueueFeatures { indirect: false, event_index: true };

#[test]
fn a_device_that_polls_is_not_notified() {
    for features in feature_sets() {
        let (mut queue, mut device) = queue_with(features);
        device.poll_only();
        for _ in 0..20 {
            let token = push(&mut queue, &REQUEST).unwrap();
            assert!(!queue.wants_notification(), "{features:?}");
            device.take();
            device.give_back(token.into(), 1);
            queue.pop().unwrap();
        }
        device.polls = false;
        assert_eq!(device.take(), None);
        push(&mut queue, &REQUEST).unwrap();
        assert!(queue.wants_notification());
    }
}

#[test]
fn a_device_is_notified_again_only_when_it_may_be() {
    for features in feature_sets() {
        let (mut queue, mut device) = queue_with(features);
        push(&mut queue, &REQUEST).unwrap();
        assert!(queue.wants_notification());
        // Nothing was pushed since. A flag does not say for which chain it holds.
        assert_eq!(queue.wants_notification(), !features.event_index);
        assert!(queue.allows_notification());
        device.poll_only();
        assert_eq!(queue.allows_notification(), features.event_index);
    }
}

#[test]
fn interrupts_can_be_suppressed_for_ever() {
    for features in feature_sets() {
        let (mut queue, mut device) = queue_with(features);
        assert!(!device.suppresses_interrupt());
        queue.suppress_interrupts();
        // Use enough chains that the index wraps. In Miri, that would take too long.
        for _ in 0..if cfg!(miri) { 20 } else { 70_000 } {
            assert!(device.suppresses_interrupt());
            let token = push(&mut queue, &REQUEST).unwrap();
            assert_eq!(device.take(), Some((token, REQUEST.to_vec())));
            device.give_back(token.into(), 1);
            assert_eq!(queue.pop(), Ok(Some(Used { token, written: 1 })));
        }
        queue.reset(SIZE, features);
        device.used_index = 0;
        assert!(device.suppresses_interrupt());
    }
}

#[test]
fn the_device_interrupts_for_the_first_chain_that_the_driver_has_not_seen() {
    let (mut queue, mut device) = queue_with(EVENT_INDEX);
    let tokens = [(); 4].map(|()| push(&mut queue, &REQUEST).unwrap());
    let interrupts = tokens.map(|token| {
        let interrupts = !device.suppresses_interrupt();
        device.give_back(token.into(), 0);
        interrupts
    });
    assert_eq!(interrupts, [true, false, false, false]);
    for _ in tokens {
        assert!(queue.pop().unwrap().is_some());
    }
    assert_eq!(queue.pop(), Ok(None));
    assert!(!device.suppresses_interrupt(), "the next chain interrupts again");
}

#[test]
fn the_indices_follow_the_rings_of_a_queue_that_the_device_makes_smaller() {
    for size in [1, 2, 4, 8] {
        let (mut queue, mut device) = queue_with(EVENT_INDEX);
        queue.reset(size.into(), EVENT_INDEX);
        device.size = size;
        for _ in 0..20 {
            assert!(!device.suppresses_interrupt());
            let token = push(&mut queue, &REQUEST[..1]).unwrap();
            assert!(queue.wants_notification());
            device.take();
            device.give_back(token.into(), 0);
            assert!(queue.pop().unwrap().is_some());
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        failure_persistence: None,
        ..ProptestConfig::with_cases(if cfg!(miri) { 8 } else { 64 })
    })]

    /// The device is notified if, and only if, the chain that it has named was pushed since the last
    /// look, whatever the indices are.
    #[test]
    fn the_device_is_notified_of_the_chain_that_it_names(
        first in prop_oneof![0u16..40, 65_500u16..=65_535],
        event_from_first in -20i32..20,
        pushed in 0u16..=8,
    ) {
        let (mut queue, mut device) = queue_with(EVENT_INDEX);
        let first = if cfg!(miri) { first % 16 } else { first };
        for _ in 0..first {
            let token = push(&mut queue, &REQUEST[..1]).unwrap();
            device.give_back(token.into(), 0);
            queue.pop().unwrap();
        }
        queue.wants_notification();
        let event = first.wrapping_add(event_from_first as u16);
        device.set_avail_event(event);
        for _ in 0..pushed {
            push(&mut queue, &REQUEST[..1]).unwrap();
        }
        let names_a_pushed_chain = (0..pushed).any(|n| first.wrapping_add(n) == event);
        prop_assert_eq!(queue.wants_notification(), names_a_pushed_chain);
    }
}
