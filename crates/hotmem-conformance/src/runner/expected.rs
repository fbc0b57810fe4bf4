//! Parses the failures that a VMM's author knows about.

use crate::point::Point;
use std::collections::BTreeMap;
use std::fmt;

/// The points that a device is expected to fail, each with the reason.
#[derive(Debug, Default)]
pub(super) struct ExpectedFailures {
    reasons: BTreeMap<&'static str, String>,
}

/// A line of the expected failures that is not valid.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ExpectedFailuresError {
    /// The number of the line, from 1.
    pub line: usize,
    /// The name in the line.
    pub name: String,
    /// What is wrong with the line.
    pub fault: LineFault,
}

/// What is wrong with a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum LineFault {
    /// No point has the name.
    UnknownName,
    /// The name is not followed by a reason.
    NoReason,
    /// An earlier line has the same name.
    Twice,
}

impl ExpectedFailures {
    /// Parses the lines that [`Suite::expecting`](super::Suite::expecting) describes.
    pub(super) fn parse(
        text: &str,
        points: &'static [Point],
    ) -> Result<ExpectedFailures, ExpectedFailuresError> {
        let mut expected = ExpectedFailures::default();
        for (line, content) in (1..).zip(text.lines().map(str::trim)) {
            if content.is_empty() || content.starts_with('#') {
                continue;
            }
            let (name, reason) = content.split_once(char::is_whitespace).unwrap_or((content, ""));
            let error = |fault| ExpectedFailuresError { line, name: name.to_owned(), fault };
            let point = points.iter().find(|point| point.name == name);
            let point = point.ok_or_else(|| error(LineFault::UnknownName))?;
            if reason.is_empty() {
                return Err(error(LineFault::NoReason));
            }
            if expected.reasons.insert(point.name, reason.trim().to_owned()).is_some() {
                return Err(error(LineFault::Twice));
            }
        }
        Ok(expected)
    }

    /// Returns the reason for which a point is expected to fail.
    pub(super) fn reason(&self, name: &str) -> Option<&str> {
        self.reasons.get(name).map(String::as_str)
    }
}

impl fmt::Display for ExpectedFailuresError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let what = match self.fault {
            LineFault::UnknownName => "no point has this name",
            LineFault::NoReason => "the name is not followed by a reason",
            LineFault::Twice => "an earlier line has this name",
        };
        write!(f, "line {} of the expected failures, {}: {what}", self.line, self.name)
    }
}

impl std::error::Error for ExpectedFailuresError {}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::MEMORY_POINTS;

    #[test]
    fn a_line_is_a_name_and_a_reason() {
        let text = "# known\n\n  mem/plug/first-block \t the first block is metadata \n";
        let expected = ExpectedFailures::parse(text, MEMORY_POINTS).unwrap();
        assert_eq!(expected.reason("mem/plug/first-block"), Some("the first block is metadata"));
        assert_eq!(expected.reason("mem/plug/unaligned"), None);
    }

    #[test]
    fn lines_that_are_not_valid_are_refused_with_their_number() {
        let refused = |text: &str| {
            let error = ExpectedFailures::parse(text, MEMORY_POINTS).unwrap_err();
            (error.line, error.fault)
        };
        assert_eq!(refused("\nmem/plug/frist-block typo"), (2, LineFault::UnknownName));
        assert_eq!(refused("balloon/report/32-entries a"), (1, LineFault::UnknownName));
        assert_eq!(refused("mem/plug/first-block"), (1, LineFault::NoReason));
        let twice = "mem/plug/first-block a\nmem/plug/first-block b";
        assert_eq!(refused(twice), (2, LineFault::Twice));
    }
}
