//! Finds out the numbers of a balloon's queues.
//!
//! The specification lists five queues, of which three exist only with a feature (5.5.2). Some devices have
//! the queues at the numbers of the list. Most number without gaps the queues that they offer.

use super::wire::{FREE_PAGE_HINT, PAGE_REPORTING, STATS_VQ};
use crate::driver::Driver;

/// What a balloon does, each with a queue.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Service {
    Inflate,
    Deflate,
    Statistics,
    Hints,
    Reports,
}

const ALL: [Service; 5] =
    [Service::Inflate, Service::Deflate, Service::Statistics, Service::Hints, Service::Reports];

/// The numbers of the queues of a balloon.
pub(super) struct Queues {
    numbers: [Option<u16>; 5],
}

impl Service {
    /// Returns the feature bit by which the service is offered, or 0 for one that always exists.
    pub(super) fn feature(self) -> u64 {
        match self {
            Service::Inflate | Service::Deflate => 0,
            Service::Statistics => STATS_VQ,
            Service::Hints => FREE_PAGE_HINT,
            Service::Reports => PAGE_REPORTING,
        }
    }

    fn is_offered(self, features: u64) -> bool {
        features & self.feature() == self.feature()
    }
}

impl Queues {
    /// Finds the queues of a device that offers `features`.
    pub(super) fn find(driver: &mut Driver<'_>, features: u64) -> Queues {
        let offered = ALL.iter().filter(|service| service.is_offered(features));
        let count = u16::try_from(offered.count()).unwrap_or(5);
        // Without gaps, no queue has a higher number than these.
        let is_listed = (count..5).any(|number| driver.queue_max(number) != 0);
        let mut dense = 0;
        let numbers = core::array::from_fn(|index| {
            let number = if is_listed { u16::try_from(index).unwrap_or(0) } else { dense };
            let is_offered = ALL[index].is_offered(features);
            dense += u16::from(is_offered);
            is_offered.then_some(number)
        });
        Queues { numbers }
    }

    pub(super) fn number(&self, service: Service) -> Option<u16> {
        let index = ALL.iter().position(|&other| other == service)?;
        self.numbers[index]
    }
}
