//! Writes the results of a run in the Test Anything Protocol (TAP), version 14. Events are written
//! between the lines of the protocol.

use crate::event::{CxlEvent, Event};
use core::fmt::{self, Write};
use hotmem::{Violations, violated_invariants};

/// The verdict of a run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// Every test point is `ok`.
    Pass,
    /// A test point is `not ok`, or the run was aborted.
    Fail,
}

/// A TAP document that is being written. Errors of the writer are ignored, because the writer is
/// the only way to report them.
pub struct Report<W: Write> {
    out: W,
    points: u32,
    verdict: Verdict,
}

impl<W: Write> Report<W> {
    /// Writes the version line.
    pub fn begin(mut out: W) -> Self {
        let _ = out.write_str("TAP version 14\n");
        Report { out, points: 0, verdict: Verdict::Pass }
    }

    /// Writes an event.
    pub fn event(&mut self, event: &Event<'_>) {
        let _ = writeln!(self.out, "{event}");
    }

    /// Writes an event of CXL memory.
    pub fn cxl(&mut self, event: CxlEvent<'_>) {
        self.event(&Event::Cxl(event));
    }

    /// Writes a test point that has passed.
    pub fn ok(&mut self, description: impl fmt::Display) {
        self.points += 1;
        let _ = writeln!(self.out, "ok {} - {description}", self.points);
    }

    /// Writes a test point that has failed, which makes the run fail.
    pub fn not_ok(&mut self, description: impl fmt::Display) {
        self.points += 1;
        self.verdict = Verdict::Fail;
        let _ = writeln!(self.out, "not ok {} - {description}", self.points);
    }

    /// Writes a test point, of which `lines` makes the lines from its number. A point that is not ok
    /// makes the run fail.
    pub fn point<D: fmt::Display>(&mut self, is_ok: bool, lines: impl FnOnce(u32) -> D) {
        self.points += 1;
        if !is_ok {
            self.verdict = Verdict::Fail;
        }
        let _ = write!(self.out, "{}", lines(self.points));
    }

    /// Writes a comment.
    pub fn comment(&mut self, text: impl fmt::Display) {
        let _ = writeln!(self.out, "# {text}");
    }

    /// Returns whether every test point so far has passed, and no invariant was violated.
    pub fn passes(&self) -> bool {
        self.verdict == Verdict::Pass && violated_invariants().count == 0
    }

    fn check(&mut self, violations: Violations) {
        match violations {
            Violations { count: 0, .. } => {}
            Violations { count, first: Some(first) } => {
                self.not_ok(format_args!("violated invariants: {count}, the first at {first}"));
            }
            Violations { count, first: None } => {
                self.not_ok(format_args!("violated invariants: {count}"));
            }
        }
    }

    /// Writes the plan and the verdict. The run also fails if an invariant was violated.
    pub fn finish(&mut self) -> Verdict {
        self.check(violated_invariants());
        let _ = writeln!(self.out, "1..{}\n{}", self.points, self.verdict);
        self.verdict
    }
}

/// Ends a document that may be incomplete, also within a line, and reports why.
pub fn bail_out(mut out: impl Write, reason: impl fmt::Display) -> Verdict {
    let _ = writeln!(out, "\nBail out! {reason}\n{}", Verdict::Fail);
    Verdict::Fail
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Verdict::Pass => "hotmem: PASS",
            Verdict::Fail => "hotmem: FAIL",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hotmem::Bytes;

    #[test]
    fn a_run_passes_if_all_test_points_pass() {
        let mut text = String::new();
        let mut report = Report::begin(&mut text);
        report.ok("boot");
        report.event(&Event::Verified { bytes: Bytes(4096) });
        report.ok(format_args!("plug {}", Bytes::gib(64)));
        assert_eq!(report.finish(), Verdict::Pass);
        assert_eq!(
            text,
            "TAP version 14\nok 1 - boot\n{\"event\":\"verified\",\"bytes\":4096}\n\
             ok 2 - plug 64GiB\n1..2\nhotmem: PASS\n"
        );
    }

    #[test]
    fn one_failed_test_point_makes_the_run_fail() {
        let mut text = String::new();
        let mut report = Report::begin(&mut text);
        report.not_ok("boot");
        report.ok("rest");
        assert_eq!(report.finish(), Verdict::Fail);
        assert!(text.ends_with("not ok 1 - boot\nok 2 - rest\n1..2\nhotmem: FAIL\n"));
    }

    #[test]
    fn a_violated_invariant_makes_the_run_fail() {
        let mut text = String::new();
        let mut report = Report::begin(&mut text);
        report.ok("boot");
        report.check(Violations { count: 0, first: None });
        assert!(report.passes());
        let first = Some(core::panic::Location::caller());
        report.check(Violations { count: 2, first });
        assert_eq!(report.finish(), Verdict::Fail);
        assert!(text.contains("ok 1 - boot\nnot ok 2 - violated invariants: 2, the first at "));
    }

    #[test]
    fn bailing_out_starts_a_new_line() {
        let mut text = String::from("ok 1 - bo");
        assert_eq!(bail_out(&mut text, "stuck"), Verdict::Fail);
        assert_eq!(text, "ok 1 - bo\nBail out! stuck\nhotmem: FAIL\n");
    }
}
