//! Finds out the numbers of the device's queues.
//!
//! The specification lists five queues, and says of three that they "only exist if" a feature is
//! set (5.5.2). It says neither whether the queues after a missing queue have lower numbers, nor
//! whether a feature is set when the device offers it or when the driver accepts it. So there are three
//! numberings:
//!
//! - the numbers of the list (libkrun, and all devices that have all five queues);
//! - without gaps, by the offered features (QEMU, Firecracker, Cloud Hypervisor, crosvm);
//! - without gaps, by the accepted features (alioth; the driver of Linux).
//!
//! Which queues exist tells the first from the others. Nothing tells the other two apart, because the
//! same queues exist whatever is accepted. So the driver makes them equal: it accepts each offered
//! feature whose queue comes before a queue that it uses ([`Features::with_earlier_queues`]).

use super::features::Features;
use core::fmt;

/// A queue of the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Queue {
    /// Inflate requests.
    Inflate,
    /// Deflate requests.
    Deflate,
    /// Statistics.
    Statistics,
    /// Free page hints.
    Hints,
    /// Free page reports.
    Reports,
}

/// How a device numbers its queues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QueueNumbering {
    /// The device numbers the queues without gaps: queues after a missing queue have lower numbers.
    /// A queue is missing if its feature is not offered.
    Dense,
    /// Each queue has its number in the specification's list.
    Listed,
}

/// The numbers of the queues that the device offers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Queues {
    features: Features,
    numbering: QueueNumbering,
}

/// The queue that an offered feature requires does not exist.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueMissing(pub Queue);

impl Queue {
    /// All queues, in the specification's order.
    pub const ALL: [Queue; 5] =
        [Queue::Inflate, Queue::Deflate, Queue::Statistics, Queue::Hints, Queue::Reports];

    /// Returns the feature that the queue depends on.
    #[must_use]
    pub fn feature(self) -> Features {
        match self {
            Queue::Inflate | Queue::Deflate => Features::empty(),
            Queue::Statistics => Features::STATS_VQ,
            Queue::Hints => Features::FREE_PAGE_HINT,
            Queue::Reports => Features::PAGE_REPORTING,
        }
    }
}

impl Queues {
    /// Determines the numbering of a device that offers the features `offered`, of which the driver
    /// has accepted `accepted`. `exists` tests whether the device has a queue with a number.
    ///
    /// The numbers depend on the offered features: a queue whose feature is offered but not accepted
    /// also has a number. If `accepted` comes from [`Features::with_earlier_queues`], the numbers of
    /// the accepted queues are also those of a device that counts the accepted features.
    ///
    /// # Errors
    /// A queue whose feature is accepted is missing under each numbering. The error names a queue that
    /// is missing if the queues are numbered without gaps.
    pub fn find(
        offered: Features,
        accepted: Features,
        mut exists: impl FnMut(u16) -> bool,
    ) -> Result<Queues, QueueMissing> {
        let existing: [bool; Queue::ALL.len() + 1] =
            core::array::from_fn(|number| u16::try_from(number).is_ok_and(&mut exists));
        let first_missing = |numbering| {
            let queues = Queues { features: offered, numbering };
            let is_existing = |queue| match queues.number(queue) {
                Some(number) => existing.get(usize::from(number)).copied().unwrap_or(false),
                None => true,
            };
            let mut needed =
                Queue::ALL.into_iter().filter(|queue| accepted.contains(queue.feature()));
            (queues, needed.find(|&queue| !is_existing(queue)))
        };
        let (dense, dense_missing) = first_missing(QueueNumbering::Dense);
        let (listed, listed_missing) = first_missing(QueueNumbering::Listed);
        // If the device has more queues than it offers by features, it has all queues of the list,
        // with the numbers of the list.
        let has_extra_queue = existing.get(dense.count()).copied().unwrap_or(false);
        match (dense_missing, listed_missing) {
            (None, None) if has_extra_queue => Ok(listed),
            (None, _) => Ok(dense),
            (_, None) => Ok(listed),
            (Some(queue), _) => Err(QueueMissing(queue)),
        }
    }

    /// Returns the number of a queue, or `None` if the device does not offer the queue's feature.
    #[must_use]
    pub fn number(&self, queue: Queue) -> Option<u16> {
        self.has(queue).then(|| {
            let before = Queue::ALL.into_iter().take_while(|&other| other != queue);
            let has_number =
                |&other: &Queue| self.numbering == QueueNumbering::Listed || self.has(other);
            // The conversion cannot fail, because the count is at most four.
            u16::try_from(before.filter(has_number).count()).unwrap_or(u16::MAX)
        })
    }

    /// Returns how the queues are numbered.
    #[must_use]
    pub fn numbering(&self) -> QueueNumbering {
        self.numbering
    }

    fn has(&self, queue: Queue) -> bool {
        self.features.contains(queue.feature())
    }

    fn count(&self) -> usize {
        Queue::ALL.into_iter().filter(|&queue| self.has(queue)).count()
    }
}

impl fmt::Display for QueueMissing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "the device offers the feature of the queue {:?}, but has the queue under no numbering",
            self.0
        )
    }
}

impl core::error::Error for QueueMissing {}

#[cfg(test)]
mod tests {
    use super::*;

    fn feature_sets() -> impl Iterator<Item = Features> {
        (0..64).map(Features::from_bits_truncate)
    }

    #[test]
    fn the_existing_queues_determine_the_numbering_for_every_feature_set() {
        for features in feature_sets() {
            for numbering in [QueueNumbering::Dense, QueueNumbering::Listed] {
                let device = Queues { features, numbering };
                let numbers = Queue::ALL.map(|queue| device.number(queue));
                let exists = |n| numbers.contains(&Some(n));
                let found = Queues::find(features, features, exists).unwrap();
                assert_eq!(Queue::ALL.map(|queue| found.number(queue)), numbers, "{features:?}");
            }
        }
    }

    /// Returns the number of each queue on a device that counts only accepted features.
    fn numbers_by_accepted(accepted: Features) -> [Option<u16>; 5] {
        let device = Queues { features: accepted, numbering: QueueNumbering::Dense };
        Queue::ALL.map(|queue| device.number(queue))
    }

    #[test]
    fn the_numbers_are_the_same_whether_a_device_counts_offered_or_accepted_features() {
        for offered in feature_sets() {
            for used in feature_sets().map(|wanted| wanted & offered) {
                let accepted = used.with_earlier_queues(offered);
                assert!(offered.contains(accepted) && accepted.contains(used));
                let by_accepted = numbers_by_accepted(accepted);
                let offered_count = Queues { features: offered, numbering: QueueNumbering::Dense };
                let some = |count: usize| move |n: u16| usize::from(n) < count;
                // The device has the queues of the offered features, or those of the accepted ones.
                for exists in
                    [some(offered_count.count()), some(by_accepted.iter().flatten().count())]
                {
                    let found = Queues::find(offered, accepted, exists).unwrap();
                    for (queue, number) in Queue::ALL.into_iter().zip(by_accepted) {
                        let is_used = used.contains(queue.feature());
                        assert!(!is_used || found.number(queue) == number, "{offered:?} {used:?}");
                    }
                }
            }
        }
    }

    #[test]
    fn a_device_with_all_five_queues_uses_the_numbers_of_the_list() {
        for features in feature_sets() {
            let found = Queues::find(features, features, |n| n < 5).unwrap();
            for (n, queue) in (0..).zip(Queue::ALL) {
                let expected = features.contains(queue.feature()).then_some(n);
                assert_eq!(found.number(queue), expected, "{features:?}");
            }
        }
    }

    #[test]
    fn the_reporting_queue_has_the_number_of_existing_devices() {
        let reports = Features::PAGE_REPORTING;
        let number = |features, count| {
            let found = Queues::find(features, features, |n| n < count).unwrap();
            found.number(Queue::Reports)
        };
        // The cases are: neither statistics nor hints, statistics, statistics and hints.
        assert_eq!(number(reports, 3), Some(2));
        assert_eq!(number(reports | Features::STATS_VQ, 4), Some(3));
        assert_eq!(number(reports | Features::STATS_VQ | Features::FREE_PAGE_HINT, 5), Some(4));
    }

    #[test]
    fn a_missing_queue_is_named() {
        let features = Features::STATS_VQ | Features::PAGE_REPORTING;
        let find = |accepted, count| Queues::find(features, accepted, |n| n < count);
        assert_eq!(find(features, 3), Err(QueueMissing(Queue::Reports)));
        assert_eq!(find(features, 0), Err(QueueMissing(Queue::Inflate)));
        assert!(find(Features::STATS_VQ, 3).is_ok(), "the queue for reports is not used");
    }
}
