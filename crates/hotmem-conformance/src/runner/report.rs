//! Holds the verdicts of a run, and prints them as TAP.

use super::verdict::Verdict;
use crate::point::Point;
use std::fmt;

/// The verdict of each point.
#[derive(Debug)]
pub struct Report {
    verdicts: Vec<(&'static Point, Verdict)>,
}

/// Displays a report in the format TAP 14, in which an expected failure is a TODO.
#[derive(Debug)]
pub struct Tap<'a>(&'a Report);

impl Report {
    pub(super) fn new(verdicts: Vec<(&'static Point, Verdict)>) -> Report {
        Report { verdicts }
    }

    /// Returns the points in their order, with their verdicts.
    #[must_use]
    pub fn verdicts(&self) -> &[(&'static Point, Verdict)] {
        &self.verdicts
    }

    /// Returns whether no point has failed or passed unexpectedly.
    #[must_use]
    pub fn is_ok(&self) -> bool {
        self.verdicts.iter().all(|(_, verdict)| verdict.is_ok())
    }

    /// Displays the report as TAP.
    #[must_use]
    pub fn tap(&self) -> Tap<'_> {
        Tap(self)
    }
}

impl fmt::Display for Tap<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "TAP version 14\n1..{}", self.0.verdicts.len())?;
        for (number, (point, verdict)) in (1..).zip(&self.0.verdicts) {
            let Point { name, section, requirement, .. } = point;
            match verdict {
                Verdict::Passed => writeln!(f, "ok {number} - {name}")?,
                Verdict::Skipped(reason) => writeln!(f, "ok {number} - {name} # SKIP {reason}")?,
                Verdict::FailedAsExpected(_, reason) => {
                    writeln!(f, "not ok {number} - {name} # TODO {reason}")?;
                }
                _ => writeln!(f, "not ok {number} - {name}")?,
            }
            if !matches!(verdict, Verdict::Passed | Verdict::Skipped(_)) {
                let message = quoted(&verdict.to_string());
                writeln!(f, "  ---\n  message: {message}")?;
                writeln!(f, "  section: '{section}'\n  requirement: {requirement}\n  ...")?;
            }
        }
        Ok(())
    }
}

/// Quotes a text as a string of YAML in one line.
fn quoted(text: &str) -> String {
    let line: String = text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    format!("'{}'", line.replace('\'', "''"))
}
