//! Tests that the driver finds its queues, however the device numbers them.

use crate::memory::Frame;
use crate::transport;
use crate::{ALL_FEATURES, BUDGET, FRAMES, NOW, start};
use hotmem_virtio::balloon::{BalloonOptions, Features, Message, Progress, Queue, QueueNumbering};

/// The sets of features that decide which queues there are.
fn queue_feature_sets() -> impl Iterator<Item = Features> {
    let features = [Features::STATS_VQ, Features::FREE_PAGE_HINT, Features::PAGE_REPORTING];
    (0..8).map(move |set: usize| {
        let chosen = (0..3).filter(|bit| set >> bit & 1 == 1).map(|bit| features[bit]);
        chosen.fold(Features::VERSION_1, |all, feature| all | feature)
    })
}

#[test]
fn the_queues_are_found_whether_the_device_counts_offered_or_accepted_features() {
    for offered in queue_feature_sets() {
        for wanted in queue_feature_sets() {
            for counts_accepted in [false, true] {
                let host = transport::host(offered, QueueNumbering::Dense);
                host.borrow_mut().numbers_accepted_queues = counts_accepted;
                host.borrow_mut().device.config.num_pages = 700;
                let options = BalloonOptions { features: wanted, ..ALL_FEATURES };
                let (mut device, mut memory) = start(&host, options).unwrap();
                assert_eq!(device.poll(NOW, BUDGET, &mut memory), Progress::Idle);
                assert_eq!(host.borrow().device.balloon.len(), 700);
                let has_reports = (offered & wanted).contains(Features::PAGE_REPORTING);
                let reported = if has_reports { FRAMES - 700 } else { 0 };
                assert_eq!(memory.count(Frame::Reported), reported, "{offered:?} {wanted:?}");
            }
        }
    }
}

#[test]
fn a_device_with_queues_that_it_does_not_offer_uses_the_fixed_numbers() {
    let host =
        transport::host(Features::VERSION_1 | Features::PAGE_REPORTING, QueueNumbering::Dense);
    host.borrow_mut().queue_sizes = vec![128; 5];
    let (device, _) = start(&host, ALL_FEATURES).unwrap();
    assert_eq!(device.queues().numbering(), QueueNumbering::Listed);
}

#[test]
fn a_kernel_that_wants_no_hints_ends_each_round_without_one() {
    let host = transport::host(Features::all(), QueueNumbering::Dense);
    let options = BalloonOptions { features: Features::PAGE_REPORTING, ..ALL_FEATURES };
    let (mut device, mut memory) = start(&host, options).unwrap();
    assert!(host.borrow().negotiated_features.contains(Features::FREE_PAGE_HINT));
    device.poll(NOW, BUDGET, &mut memory);
    for command in [5, 6] {
        host.borrow_mut().device.messages.clear();
        host.borrow_mut().device.request_hints(command);
        device.poll(NOW, BUDGET, &mut memory);
        let expected = [Message::HintCommand(command), Message::HintCommand(0)];
        assert_eq!(host.borrow().device.messages, expected);
    }
    assert_eq!(device.driver().counters().hints, 0);
}

#[test]
fn the_queue_for_reports_keeps_its_number_if_only_reports_are_wanted() {
    let host = transport::host(Features::all(), QueueNumbering::Dense);
    let options = BalloonOptions { features: Features::PAGE_REPORTING, ..ALL_FEATURES };
    let (device, _) = start(&host, options).unwrap();
    assert_eq!(device.queues().number(Queue::Reports), Some(4));
}
