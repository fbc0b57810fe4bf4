//! Holds the verdicts of a run, and prints them as TAP.

use super::verdict::Verdict;
use crate::point::Point;
use crate::tap::{Ending, write_lines};
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
            let ending = match verdict {
                Verdict::Passed => Ending::Passed,
                Verdict::Skipped(reason) => Ending::Skipped(reason),
                Verdict::FailedAsExpected(_, reason) => {
                    Ending::Failed { todo: Some(reason), message: verdict }
                }
                _ => Ending::Failed { todo: None, message: verdict },
            };
            write_lines(f, number, point, &ending)?;
        }
        Ok(())
    }
}
