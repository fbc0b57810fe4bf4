//! Writes how a point ends in the format TAP 14.

use crate::point::{Outcome, Point};
use core::fmt::{self, Display, Write};

/// Displays the lines of a point in the format TAP 14: [`Point::tap`].
#[derive(Clone, Copy, Debug)]
pub struct TapLines<'a> {
    number: u32,
    point: &'a Point,
    outcome: &'a Outcome,
}

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
        TapLines { number, point: self, outcome }
    }
}

impl Display for TapLines<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ending = match self.outcome {
            Outcome::Passed => Ending::Passed,
            Outcome::Skipped(reason) => Ending::Skipped(reason),
            Outcome::Failed(failure) => Ending::Failed { todo: None, message: failure },
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
