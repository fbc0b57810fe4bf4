//! Negotiates a device's features and sets up its queues, at the start and after a reset.

use super::message::Ranges;
use super::message_buffers::MessageBuffers;
use super::queues::Queue;
use super::start::{BalloonOptions, InitError, Negotiated, SHORT_QUEUE_SIZE, negotiate};
use crate::dma::DmaMemory;
use crate::handshake::set_running;
use crate::queue::{QueueFeatures, SplitQueue};
use virtio_drivers::transport::{DeviceStatus, Transport};

/// A queue on which at most one chain is outstanding. The chain has one buffer.
pub(super) type ShortQueue = SplitQueue<{ SHORT_QUEUE_SIZE as usize }>;
/// The queue of reports. A chain has one buffer for each range. The device may allow fewer
/// descriptors.
pub(super) type ReportQueue = SplitQueue<{ Ranges::MAX_LEN }>;

pub(super) type AllQueues = ([ShortQueue; 4], ReportQueue);

/// Resets the device, negotiates its features, and sets up its queues.
///
/// At first only the queues of accepted features are set up, because some devices number the queues
/// that are set up. Other devices run only if all queues are set up that they have, with features or
/// without: if the device does not run, it is started again with these.
pub(super) fn start<T: Transport>(
    transport: &mut T,
    short_queues: &mut [ShortQueue; 4],
    reports: &mut ReportQueue,
    options: BalloonOptions,
) -> Result<Negotiated, InitError> {
    let mut status = DeviceStatus::empty();
    for with_all_queues in [false, true] {
        let negotiated = negotiate(transport, options)?;
        let queue_features = negotiated.queue_features;
        let numbers = match with_all_queues {
            false => Queue::ALL.map(|queue| negotiated.accepted_number(queue)),
            true => all_numbers(transport, &negotiated),
        };
        let [of_short_queues @ .., of_reports] = numbers;
        for (number, split_queue) in of_short_queues.into_iter().zip(&mut *short_queues) {
            if let Some(number) = number {
                set_up(transport, number, split_queue, queue_features);
            }
        }
        if let Some(number) = of_reports {
            set_up(transport, number, reports, queue_features);
        }
        match set_running(transport) {
            Ok(()) => return Ok(negotiated),
            Err(found) => status = found,
        }
    }
    Err(InitError::NotRunning(status))
}

/// Returns the numbers of all queues that the device has, in the places of the queues whose memory they
/// get. A queue that the device does not offer gets the memory of one that the device does not have. A
/// queue that is offered and not accepted may not exist under the number that it would have.
fn all_numbers<T: Transport>(transport: &mut T, negotiated: &Negotiated) -> [Option<u16>; 5] {
    let mut numbers = Queue::ALL.map(|queue| {
        let number = negotiated.numbers.number(queue)?;
        (transport.max_queue_size(number) > 0).then_some(number)
    });
    for number in (0..).take(numbers.len()) {
        if transport.max_queue_size(number) > 0
            && !numbers.contains(&Some(number))
            && let Some(place) = numbers.iter_mut().find(|place| place.is_none())
        {
            *place = Some(number);
        }
    }
    numbers
}

/// Empties a queue, and makes it known to the device with as many descriptors as both allow.
fn set_up<T: Transport, const SIZE: usize>(
    transport: &mut T,
    number: u16,
    queue: &mut SplitQueue<SIZE>,
    features: QueueFeatures,
) {
    let device_allows = transport.max_queue_size(number);
    queue.reset(usize::try_from(device_allows).unwrap_or(usize::MAX), features);
    let (descriptors, driver_area) = (queue.descriptors(), queue.driver_area());
    transport.queue_set(number, queue.size().into(), descriptors, driver_area, queue.device_area());
}

/// Makes the queues and the buffers of messages in `memory`. Returns `None` if
/// `memory` is too small or not aligned.
pub(super) fn lay_out(memory: DmaMemory) -> Option<(AllQueues, MessageBuffers)> {
    let (reports, memory) = ReportQueue::new(memory)?;
    let (inflate, memory) = ShortQueue::new(memory)?;
    let (deflate, memory) = ShortQueue::new(memory)?;
    let (statistics, memory) = ShortQueue::new(memory)?;
    let (mut hints, memory) = ShortQueue::new(memory)?;
    hints.suppress_interrupts();
    let queues = ([inflate, deflate, statistics, hints], reports);
    Some((queues, MessageBuffers::new(memory)?))
}
