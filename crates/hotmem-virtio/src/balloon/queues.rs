//! Which queue has which number.
//!
//! The specification lists five queues, of which some "only exist if" a feature is set (5.5.2),
//! and leaves open whether those after a missing one move up. Most devices, QEMU and Linux' driver
//! among them, count densely; some follow the list to the letter. Which queues exist tells.

use super::features::Features;
use core::fmt;

/// A queue of the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Queue {
    /// Memory goes into the balloon.
    Inflate,
    /// Memory comes out of the balloon.
    Deflate,
    /// Statistics.
    Statistics,
    /// Free page hints.
    Hints,
    /// Free page reports.
    Reports,
}

/// How a device counts its queues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Numbering {
    /// Without gaps: queues after a missing one move up.
    Dense,
    /// As the specification lists them.
    Listed,
}

/// The numbers of the queues that are negotiated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Queues {
    features: Features,
    numbering: Numbering,
}

/// A queue that the features call for is not there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueMissing(pub Queue);

impl Queue {
    /// All of them, in the specification's order.
    pub const ALL: [Queue; 5] =
        [Queue::Inflate, Queue::Deflate, Queue::Statistics, Queue::Hints, Queue::Reports];

    /// Returns the feature without which it does not exist.
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
    /// Finds out how a device counts that offers `offered`, by which queues `exists` says are
    /// there.
    ///
    /// Queues are counted by what the device offers: one whose feature is not accepted keeps its
    /// number.
    ///
    /// # Errors
    /// A queue that is not there under either numbering.
    pub fn find(
        offered: Features,
        mut exists: impl FnMut(u16) -> bool,
    ) -> Result<Queues, QueueMissing> {
        let there: [bool; Queue::ALL.len() + 1] =
            core::array::from_fn(|number| u16::try_from(number).is_ok_and(&mut exists));
        let missing = |numbering| {
            let queues = Queues { features: offered, numbering };
            let is_there = |queue| match queues.number(queue) {
                Some(number) => there.get(usize::from(number)).copied().unwrap_or(false),
                None => true,
            };
            (queues, Queue::ALL.into_iter().find(|&queue| !is_there(queue)))
        };
        let (dense, dense_missing) = missing(Numbering::Dense);
        let (listed, listed_missing) = missing(Numbering::Listed);
        // More queues than features: some exist without being offered, so nothing moved up.
        let more = there.get(dense.count()).copied().unwrap_or(false);
        match (dense_missing, listed_missing) {
            (None, None) if more => Ok(listed),
            (None, _) => Ok(dense),
            (_, None) => Ok(listed),
            (Some(queue), _) => Err(QueueMissing(queue)),
        }
    }

    /// Returns the number of a queue; `None` if it is not offered.
    #[must_use]
    pub fn number(&self, queue: Queue) -> Option<u16> {
        self.has(queue).then(|| {
            let before = Queue::ALL.into_iter().take_while(|&other| other != queue);
            let counts = |&other: &Queue| self.numbering == Numbering::Listed || self.has(other);
            // At most four.
            u16::try_from(before.filter(counts).count()).unwrap_or(u16::MAX)
        })
    }

    /// How they are counted.
    #[must_use]
    pub fn numbering(&self) -> Numbering {
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
        write!(f, "the device has no queue for what it offers: {:?}", self.0)
    }
}

impl core::error::Error for QueueMissing {}

#[cfg(test)]
mod tests {
    use super::*;

    fn mixes() -> impl Iterator<Item = Features> {
        (0..64).map(Features::from_bits_truncate)
    }

    #[test]
    fn every_mix_is_told_apart_by_which_queues_exist() {
        for features in mixes() {
            for numbering in [Numbering::Dense, Numbering::Listed] {
                let device = Queues { features, numbering };
                let numbers = Queue::ALL.map(|queue| device.number(queue));
                let found = Queues::find(features, |n| numbers.contains(&Some(n))).unwrap();
                assert_eq!(Queue::ALL.map(|queue| found.number(queue)), numbers, "{features:?}");
            }
        }
    }

    #[test]
    fn a_device_that_always_has_all_five_lists_them() {
        for features in mixes() {
            let found = Queues::find(features, |n| n < 5).unwrap();
            for (n, queue) in (0..).zip(Queue::ALL) {
                let expected = features.contains(queue.feature()).then_some(n);
                assert_eq!(found.number(queue), expected, "{features:?}");
            }
        }
    }

    #[test]
    fn reports_where_devices_have_them() {
        let reports = Features::PAGE_REPORTING;
        let number =
            |features, count| Queues::find(features, |n| n < count).unwrap().number(Queue::Reports);
        // Without statistics, with them, with hints as well.
        assert_eq!(number(reports, 3), Some(2));
        assert_eq!(number(reports | Features::STATS_VQ, 4), Some(3));
        assert_eq!(number(reports | Features::STATS_VQ | Features::FREE_PAGE_HINT, 5), Some(4));
    }

    #[test]
    fn a_missing_queue_is_named() {
        let features = Features::STATS_VQ | Features::PAGE_REPORTING;
        assert_eq!(Queues::find(features, |n| n < 3), Err(QueueMissing(Queue::Reports)));
        assert_eq!(Queues::find(features, |_| false), Err(QueueMissing(Queue::Inflate)));
    }
}
