//! The results that this kernel prints, one JSON object a line: figures, races, and marked
//! operations.

use core::fmt;

/// The cost of one case to one subject.
pub(crate) struct Figure<'a> {
    pub(crate) case: &'a str,
    pub(crate) subject: &'a str,
    pub(crate) batch: usize,
    pub(crate) entries: usize,
    pub(crate) cycles: u64,
    /// The cycles spent in hypercalls.
    pub(crate) in_xen: u64,
    pub(crate) hypercalls: u64,
    /// The number of flushes that the kernel requested, without Xen's own.
    pub(crate) flushes: u64,
}

/// The result of a race with the other CPU.
pub(crate) struct Race<'a> {
    pub(crate) subject: &'a str,
    pub(crate) batch: usize,
    pub(crate) rounds: u64,
    pub(crate) writes: u64,
    pub(crate) lost_bits: u64,
}

/// The operation between the last two marks: page faults that `marks.rs` causes, and that the host
/// finds in QEMU's log.
pub(crate) struct MarkedOperation {
    pub(crate) case: &'static str,
    pub(crate) subject: &'static str,
    /// The number of full L1 tables.
    pub(crate) tables: usize,
}

impl<'a> Figure<'a> {
    /// Makes a figure without costs.
    pub(crate) fn of(case: &'a str, subject: &'a str, batch: usize, entries: usize) -> Figure<'a> {
        Figure { case, subject, batch, entries, cycles: 0, in_xen: 0, hypercalls: 0, flushes: 0 }
    }

    /// Adds the costs of another run of the same case.
    pub(crate) fn and(self, other: Figure<'_>) -> Figure<'a> {
        Figure {
            cycles: self.cycles + other.cycles,
            in_xen: self.in_xen + other.in_xen,
            hypercalls: self.hypercalls + other.hypercalls,
            flushes: self.flushes + other.flushes,
            ..self
        }
    }
}

impl fmt::Display for Figure<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Figure { case, subject, batch, entries, cycles, in_xen, hypercalls, flushes } = self;
        write!(
            f,
            r#"{{"event":"figure","case":"{case}","subject":"{subject}","batch":{batch},"entries":{entries},"cycles":{cycles},"in_xen":{in_xen},"hypercalls":{hypercalls},"flushes":{flushes}}}"#
        )
    }
}

impl fmt::Display for MarkedOperation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let MarkedOperation { case, subject, tables } = self;
        write!(f, r#"{{"event":"marked","case":"{case}","subject":"{subject}","tables":{tables}}}"#)
    }
}

impl fmt::Display for Race<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Race { subject, batch, rounds, writes, lost_bits: lost } = self;
        write!(
            f,
            r#"{{"event":"race","subject":"{subject}","batch":{batch},"rounds":{rounds},"writes":{writes},"lost":{lost}}}"#
        )
    }
}
