//! Tests chains whose descriptors are in a table of their own (`INDIRECT_DESC`, 2.7.5.3).

use crate::shared::Descriptor;
use crate::{REQUEST, SIZE, push, queue, queue_with};
use hotmem_virtio::queue::{QueueError, QueueFeatures, Used};

const INDIRECT: QueueFeatures = QueueFeatures { indirect: true, event_index: false };
const LONGEST: [Descriptor; SIZE] = [(0x1000, 4, false); SIZE];

#[test]
fn a_chain_in_the_table_takes_one_descriptor_of_the_queue() {
    let (mut queue, mut device) = queue_with(INDIRECT);
    let first = push(&mut queue, &LONGEST).unwrap();
    // Seven descriptors are free, although the first chain has eight buffers.
    let second = push(&mut queue, &LONGEST[..7]).unwrap();
    assert_eq!(push(&mut queue, &LONGEST[..1]), Err(QueueError::Full));
    assert_eq!(device.take(), Some((first, LONGEST.to_vec())));
    assert_eq!(device.take(), Some((second, LONGEST[..7].to_vec())));
}

#[test]
fn the_table_is_used_again_only_when_its_chain_is_returned() {
    let (mut queue, mut device) = queue_with(INDIRECT);
    let in_table = push(&mut queue, &REQUEST).unwrap();
    let other = push(&mut queue, &[(0x3000, 1, false), (0x4000, 2, true)]).unwrap();
    assert_eq!(device.take(), Some((in_table, REQUEST.to_vec())));
    assert!(device.take().is_some());
    device.give_back(other.into(), 0);
    assert_eq!(queue.pop(), Ok(Some(Used { token: other, written: 0 })));
    // The table still belongs to the first chain: the device reads its descriptors at any time.
    let table = queue.descriptors() + 16 * SIZE as u64;
    let before = device.page.read(table, 16 * SIZE);
    push(&mut queue, &LONGEST[..3]).unwrap();
    assert_eq!(device.page.read(table, 16 * SIZE), before);
    assert_eq!(device.take().unwrap().1, LONGEST[..3]);
    device.give_back(in_table.into(), 10);
    assert_eq!(queue.pop(), Ok(Some(Used { token: in_table, written: 10 })));
    push(&mut queue, &LONGEST[..4]).unwrap();
    assert_ne!(device.page.read(table, 16 * SIZE), before);
    assert_eq!(device.take().unwrap().1, LONGEST[..4]);
}

#[test]
fn a_chain_is_never_longer_than_the_queue() {
    let (mut queue, _) = queue_with(INDIRECT);
    queue.reset(4, INDIRECT);
    assert_eq!(push(&mut queue, &LONGEST[..5]), Err(QueueError::Full));
    assert!(push(&mut queue, &LONGEST[..4]).is_ok());
}

#[test]
fn a_table_is_not_used_without_the_feature_nor_for_a_single_buffer() {
    let (mut queue, mut device) = queue();
    push(&mut queue, &REQUEST).unwrap();
    // The device's side of the test refuses a table that was not negotiated.
    assert!(device.take().is_some());
    let (mut queue, mut device) = queue_with(INDIRECT);
    push(&mut queue, &REQUEST[..1]).unwrap();
    device.features.indirect = false;
    assert!(device.take().is_some());
}

#[test]
fn a_used_element_that_names_a_descriptor_of_the_table_is_refused() {
    let (mut queue, mut device) = queue_with(INDIRECT);
    push(&mut queue, &LONGEST).unwrap();
    device.give_back(1, 0);
    assert_eq!(queue.pop(), Err(QueueError::UsedId(1)));
}
