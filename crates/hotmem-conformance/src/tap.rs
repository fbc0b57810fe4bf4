//! Writes how a point ends in the format TAP 14.

use crate::point::{Outcome, Point};
use core::fmt::{self, Display, Write};

/// Displays the lines of a point in the format TAP 14: [`Point::tap`].
#[derive(Clone, Copy, Debug)]
pub struct TapLines<'a> {
    number: u32,
    point: &'a Point,
    outcome: &'a Outcome,
    is_known: bool,
}

const KNOWN: &str = "a known failure";
const UNEXPECTED: &str = "the point passes, although it is listed as a known failure";

/// What the lines of a point say.
pub(crate) enum Ending<'a> {
    /// The point passes.
    Passed,
    /// The point is not checked, for this reason.
    Skipped(&'a str),
    /// The point fails.
    Failed {
        /// Why this is expected, if it is.
        todo: Option<&'a str>,
        /// What the device does.
        message: &'a dyn Display,
    },
}

impl Point {
    /// Displays `outcome`, the outcome of this point, as lines of TAP 14. `number` is the number of the point
    /// in its document.
    #[must_use]
    pub fn tap<'a>(&'a self, number: u32, outcome: &'a Outcome) -> TapLines<'a> {
        TapLines { number, point: self, outcome, is_known: false }
    }
}

impl TapLines<'_> {
    /// Says whether the failure of the point is known. A known failure is a TODO, and a known failure that
    /// passes is `not ok`, so that it is removed from its list.
    #[must_use]
    pub fn known_to_fail(self, is_known: bool) -> Self {
        TapLines { is_known, ..self }
    }

    /// Returns whether a run with these lines may pass.
    #[must_use]
    pub fn is_ok(&self) -> bool {
        match self.outcome {
            Outcome::Passed => !self.is_known,
            Outcome::Failed(_) => self.is_known,
            Outcome::Skipped(_) => true,
        }
    }
}

impl Display for TapLines<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ending = match self.outcome {
            Outcome::Passed if self.is_known => Ending::Failed { todo: None, message: &UNEXPECTED },
            Outcome::Passed => Ending::Passed,
            Outcome::Skipped(reason) => Ending::Skipped(reason),
            Outcome::Failed(failure) => {
                Ending::Failed { todo: self.is_known.then_some(KNOWN), message: failure }
            }
        };
        write_lines(f, self.number, self.point, &ending)
    }
}

/// Writes the lines of a point.
pub(crate) fn write_lines(
    f: &mut fmt::Formatter<'_>,
    number: u32,
    point: &Point,
    ending: &Ending<'_>,
) -> fmt::Result {
    let Point { name, section, requirement, .. } = point;
    match *ending {
        Ending::Passed => writeln!(f, "ok {number} - {name}"),
        Ending::Skipped(reason) => writeln!(f, "ok {number} - {name} # SKIP {reason}"),
        Ending::Failed { todo, message } => {
            write!(f, "not ok {number} - {name}")?;
            if let Some(reason) = todo {
                write!(f, " # TODO {reason}")?;
            }
            f.write_str("\n  ---\n  message: '")?;
            write!(Quoted(f), "{message}")?;
            writeln!(f, "'\n  section: '{section}'\n  requirement: {requirement}\n  ...")
        }
    }
}

/// Writes a text as part of a string of YAML in one line, which single quotes surround.
struct Quoted<'a, 'f>(&'a mut fmt::Formatter<'f>);

impl Write for Quoted<'_, '_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        text.chars().try_for_each(|char| match char {
            '\'' => self.0.write_str("''"),
            _ if char.is_control() => self.0.write_char(' '),
            _ => self.0.write_char(char),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Failure, MEMORY_POINTS};

    #[test]
    fn a_known_failure_is_a_todo_and_one_that_passes_is_not_ok() {
        let point = &MEMORY_POINTS[0];
        let failed = Outcome::Failed(Failure::Busy);
        let lines = point.tap(7, &failed).known_to_fail(true);
        let start = "not ok 7 - transport/reset-reads-zero # TODO a known failure\n";
        assert!(lines.is_ok() && lines.to_string().starts_with(start), "{lines}");
        let lines = point.tap(7, &Outcome::Passed).known_to_fail(true);
        let start = "not ok 7 - transport/reset-reads-zero\n";
        assert!(!lines.is_ok() && lines.to_string().starts_with(start), "{lines}");
        assert!(!point.tap(7, &failed).is_ok());
        assert!(point.tap(7, &Outcome::Passed).is_ok());
        assert!(point.tap(7, &Outcome::Skipped("no")).known_to_fail(true).is_ok());
    }
}
