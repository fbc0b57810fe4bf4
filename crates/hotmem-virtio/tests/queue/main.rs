//! Tests the split queue with a device that follows the specification, and with a device that does
//! not.

#![allow(clippy::cast_possible_truncation)]

mod indirect;
mod notifications;
mod shared;
mod threads;

use hotmem_virtio::queue::{Buffer, QueueError, QueueFeatures, SplitQueue, Used};
use proptest::collection::vec;
use proptest::prelude::*;
use shared::{Descriptor, DeviceSide, SharedPage};

const SIZE: usize = 8;
type Queue = SplitQueue<SIZE>;

fn queue() -> (Queue, DeviceSide) {
    queue_with(QueueFeatures::default())
}

/// All combinations of features.
fn feature_sets() -> impl Iterator<Item = QueueFeatures> {
    let both = [false, true];
    both.into_iter()
        .flat_map(move |indirect| both.map(|event_index| QueueFeatures { indirect, event_index }))
}

fn queue_with(features: QueueFeatures) -> (Queue, DeviceSide) {
    let page = SharedPage::new();
    let (mut queue, _) = Queue::new(page.dma(0)).unwrap();
    queue.reset(SIZE, features);
    let device = DeviceSide {
        page,
        size: 8,
        descriptors: queue.descriptors(),
        driver_area: queue.driver_area(),
        device_area: queue.device_area(),
        next_available: 0,
        used_index: 0,
        features,
        polls: false,
    };
    (queue, device)
}

fn push(queue: &mut Queue, descriptors: &[Descriptor]) -> Result<u16, QueueError> {
    let chain: Vec<_> = descriptors
        .iter()
        .map(|&(device_addr, len, device_writes)| Buffer { device_addr, len, device_writes })
        .collect();
    // SAFETY: the device in these tests does not access buffers.
    unsafe { queue.push(&chain) }
}

const REQUEST: [Descriptor; 2] = [(0x1000, 24, false), (0x2000, 10, true)];

#[test]
fn the_parts_of_a_queue_lie_at_the_specified_offsets() {
    let (queue, _) = queue();
    assert!(queue.driver_area() - queue.descriptors() >= 16 * 8);
    assert_eq!(queue.driver_area() % 2, 0);
    assert!(queue.device_area() - queue.driver_area() >= 6 + 2 * 8);
    assert_eq!(queue.device_area() % 4, 0);
    assert!(queue.descriptors() + Queue::BYTES as u64 >= queue.device_area() + 6 + 8 * 8);
}

#[test]
fn memory_that_is_too_small_or_not_aligned_is_refused() {
    assert!(Queue::new(SharedPage::new().dma(8)).is_none());
    assert!(Queue::new(SharedPage::new().dma(SharedPage::SIZE - Queue::BYTES + 16)).is_none());
    let (_, rest) = Queue::new(SharedPage::new().dma(SharedPage::SIZE - Queue::BYTES)).unwrap();
    assert!(rest.is_empty());
}

#[test]
fn chains_are_used_and_returned_repeatedly() {
    for features in feature_sets() {
        let (mut queue, mut device) = queue_with(features);
        // Use enough chains that the indices of the rings wrap. In Miri, that would take too long.
        for round in 0..if cfg!(miri) { 70 } else { 70_000u32 } {
            let token = push(&mut queue, &REQUEST).unwrap();
            assert_eq!(queue.pop(), Ok(None));
            assert_eq!(device.take(), Some((token, REQUEST.to_vec())));
            assert_eq!(device.take(), None);
            device.give_back(token.into(), round % 11);
            assert_eq!(queue.pop(), Ok(Some(Used { token, written: round % 11 })));
            assert_eq!(queue.outstanding(), 0);
        }
    }
}

#[test]
fn invalid_chains_are_refused_and_change_nothing() {
    let (mut queue, mut device) = queue();
    let cases: [(&[Descriptor], QueueError); 7] = [
        (&[], QueueError::Length),
        (&[(0x1000, 0, false)], QueueError::Length),
        (&[(0, u32::MAX, true), (0, 1, true)], QueueError::Length),
        (&[(0, u32::MAX, false), (0, 1, false)], QueueError::Length),
        (&[(0, u32::MAX, false), (0, 1, true)], QueueError::Length),
        (&[(0, 1, true), (0, 1, false)], QueueError::Order),
        (&[(0, 1, false); 9], QueueError::Full),
    ];
    for (descriptors, error) in cases {
        assert_eq!(push(&mut queue, descriptors), Err(error));
        assert_eq!(device.take(), None);
    }
    push(&mut queue, &[(0, 1, false); 7]).unwrap();
    assert_eq!(push(&mut queue, &REQUEST), Err(QueueError::Full));
    push(&mut queue, &REQUEST[..1]).unwrap();
}

#[test]
fn invalid_used_elements_are_refused_permanently() {
    type Violate = fn(&mut DeviceSide, u32);
    let cases: [(Violate, QueueError); 6] = [
        (|device, _| device.give_back(8, 0), QueueError::UsedId(8)),
        (|device, _| device.give_back(u32::MAX, 0), QueueError::UsedId(u32::MAX)),
        (|device, token| device.give_back(token + 0x1_0000, 0), QueueError::UsedId(0x1_0000)),
        // The ID is that of the second descriptor of the chain, or of a descriptor without a chain.
        (|device, token| device.give_back(token + 1, 0), QueueError::UsedId(1)),
        (|device, token| device.give_back(token + 5, 0), QueueError::UsedId(5)),
        (|device, _| device.set_used_index(2), QueueError::UsedIndex(2)),
    ];
    for (violate, error) in cases {
        let (mut queue, mut device) = queue();
        let token = push(&mut queue, &REQUEST).unwrap();
        assert_eq!(token, 0);
        violate(&mut device, token.into());
        for _ in 0..3 {
            assert_eq!(queue.pop(), Err(error));
        }
        assert_eq!(queue.outstanding(), 1);
    }
}

#[test]
fn a_used_length_beyond_the_chain_is_refused_permanently() {
    for (descriptors, given) in [(&REQUEST[..], 10), (&REQUEST[1..], 10), (&REQUEST[..1], 24)] {
        for reported in [0, 1, given, given + 1, u32::MAX] {
            let (mut queue, mut device) = queue();
            let token = push(&mut queue, descriptors).unwrap();
            device.give_back(token.into(), reported);
            if reported > given {
                let error = QueueError::UsedLength { token, reported, given };
                for _ in 0..3 {
                    assert_eq!(queue.pop(), Err(error));
                }
                assert_eq!(queue.outstanding(), 1);
                continue;
            }
            // Some devices report the bytes that they have read.
            let written = if descriptors == &REQUEST[..1] { 0 } else { reported };
            assert_eq!(queue.pop(), Ok(Some(Used { token, written })));
            assert_eq!(queue.pop(), Ok(None));
        }
    }
}

#[test]
fn a_chain_that_is_returned_twice_is_refused() {
    let (mut queue, mut device) = queue();
    let first = push(&mut queue, &REQUEST).unwrap();
    let second = push(&mut queue, &REQUEST).unwrap();
    device.give_back(first.into(), 0);
    device.give_back(first.into(), 0);
    assert_eq!(queue.pop(), Ok(Some(Used { token: first, written: 0 })));
    assert_eq!(queue.pop(), Err(QueueError::UsedId(first.into())));
    assert_ne!(first, second);
    // No chain is outstanding.
    let (mut queue, mut device) = self::queue();
    device.give_back(0, 0);
    assert_eq!(queue.pop(), Err(QueueError::UsedIndex(1)));
}

#[test]
fn descriptors_that_the_device_overwrites_are_not_read() {
    let (mut queue, mut device) = queue();
    let token = push(&mut queue, &REQUEST).unwrap();
    device.page.write(queue.descriptors(), &[0xff; 16 * SIZE]);
    device.give_back(token.into(), 10);
    assert_eq!(queue.pop(), Ok(Some(Used { token, written: 10 })));
    for _ in 0..4 {
        push(&mut queue, &REQUEST).unwrap();
    }
    assert_eq!(push(&mut queue, &REQUEST), Err(QueueError::Full));
}

proptest! {
    #![proptest_config(ProptestConfig {
        failure_persistence: None,
        ..ProptestConfig::with_cases(if cfg!(miri) { 8 } else { 256 })
    })]

    /// Compares the queue with a list of outstanding chains. The chains have any length and are
    /// returned in any order.
    #[test]
    fn every_chain_is_returned_exactly_one_time(
        steps in vec((any::<bool>(), 1usize..5, any::<prop::sample::Index>()), 0..300),
        indirect in any::<bool>(),
        event_index in any::<bool>(),
    ) {
        let (mut queue, mut device) = queue_with(QueueFeatures { indirect, event_index });
        let mut outstanding: Vec<(u16, Vec<Descriptor>)> = Vec::new();
        // The chain whose descriptors are in the indirect table.
        let mut in_table = None;
        let mut number = 0;
        for (pushing, buffers, index) in steps {
            if pushing {
                let chain: Vec<Descriptor> = (0..buffers)
                    .map(|i| (number + i as u64, 4, i >= buffers / 2))
                    .collect();
                number += 16;
                let used = |(token, chain): &(u16, Vec<Descriptor>)| match in_table {
                    Some(in_table) if in_table == *token => 1,
                    _ => chain.len(),
                };
                let free = SIZE - outstanding.iter().map(used).sum::<usize>();
                let fits_table = indirect && in_table.is_none() && buffers > 1;
                let needed = if fits_table { 1 } else { buffers };
                match push(&mut queue, &chain) {
                    Ok(token) => {
                        prop_assert!(needed <= free);
                        if fits_table {
                            in_table = Some(token);
                        }
                        prop_assert_eq!(device.take(), Some((token, chain.clone())));
                        outstanding.push((token, chain));
                    }
                    Err(error) => {
                        prop_assert_eq!(error, QueueError::Full);
                        prop_assert!(needed > free);
                    }
                }
            } else if !outstanding.is_empty() {
                let (token, chain) = outstanding.swap_remove(index.index(outstanding.len()));
                in_table = in_table.filter(|&in_table| in_table != token);
                let written = 4 * chain.iter().filter(|descriptor| descriptor.2).count() as u32;
                device.give_back(token.into(), written);
                prop_assert_eq!(queue.pop(), Ok(Some(Used { token, written })));
            }
            prop_assert_eq!(usize::from(queue.outstanding()), outstanding.len());
            prop_assert_eq!(queue.pop(), Ok(None));
        }
    }
}
