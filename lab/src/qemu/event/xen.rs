//! What the Xen guest has measured.

use serde::Deserialize;

/// The cost of a case for a subject, as the guest measured it.
#[derive(Clone, PartialEq, Eq, Debug, Deserialize)]
pub struct Figure {
    /// The case, such as `xen-munmap`.
    pub case: String,
    /// The subject: `before`, `read-then-clear`, `linux-order` or `hotmem`.
    pub subject: String,
    /// The number of entries in a hypercall.
    pub batch: u64,
    /// The total number of entries.
    pub entries: u64,
    /// The time, in units of the clock.
    pub cycles: u64,
    /// The part of `cycles` that was spent in hypercalls. Instructions that trapped do not count.
    pub in_xen: u64,
    /// The number of hypercalls.
    pub hypercalls: u64,
    /// The number of TLB flushes that the guest requested.
    pub flushes: u64,
}

/// The result of a race, in which a CPU unmaps pages and collects their Dirty flags, while another
/// CPU writes to these pages.
#[derive(Clone, PartialEq, Eq, Debug, Deserialize)]
pub struct Race {
    /// The subject: `read-then-clear` or `hotmem`.
    pub subject: String,
    /// The number of entries in a hypercall.
    pub batch: u64,
    /// The number of times that all pages were unmapped.
    pub rounds: u64,
    /// The number of writes by the other CPU.
    pub writes: u64,
    /// The number of pages that were written to and were not reported as dirty.
    pub lost: u64,
}

/// An operation between two marks in QEMU's log.
#[derive(Clone, PartialEq, Eq, Debug, Deserialize)]
pub struct MarkedOperation {
    /// The case, such as `xen-munmap`.
    pub case: String,
    /// The subject: `before`, `read-then-clear` or `hotmem`.
    pub subject: String,
    /// The number of L1 tables. All their entries are present.
    pub tables: u64,
}

impl Figure {
    /// Returns the cycles or instructions for each entry.
    #[must_use]
    pub fn per_entry(&self) -> f64 {
        self.per_entry_of(self.cycles)
    }

    /// Returns the cycles or instructions for each entry that were spent in hypercalls.
    #[must_use]
    pub fn per_entry_in_xen(&self) -> f64 {
        self.per_entry_of(self.in_xen)
    }

    #[expect(clippy::cast_precision_loss, reason = "the result is printed")]
    fn per_entry_of(&self, count: u64) -> f64 {
        count as f64 / self.entries.max(1) as f64
    }
}

#[cfg(test)]
mod tests {
    use crate::qemu::Event;

    #[test]
    fn events_of_the_guest_are_parsed() {
        let figure = r#"{"event":"figure","case":"xen-exit","subject":"hotmem","batch":512,"entries":4,"cycles":10,"in_xen":7,"hypercalls":3,"flushes":1}"#;
        let Event::Figure(figure) = serde_json::from_str(figure).unwrap() else { panic!() };
        assert_eq!((figure.per_entry(), figure.flushes), (2.5, 1));
        let race =
            r#"{"event":"race","subject":"hotmem","batch":1,"rounds":2,"writes":7,"lost":0}"#;
        assert!(
            matches!(serde_json::from_str(race).unwrap(), Event::Race(race) if race.writes == 7)
        );
    }
}
