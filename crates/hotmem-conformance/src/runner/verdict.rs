//! Defines how a point ends, given the failures that are expected.

use crate::failure::Failure;
use std::fmt;
use std::io::ErrorKind;
use std::time::Duration;

/// Why a point fails.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Fault {
    /// The device does what the point does not allow.
    Deviates(Failure),
    /// The device panics, with this message.
    Panics(String),
    /// The device has not returned within this time.
    Hangs(Duration),
    /// The point was not checked, because no thread could be started for it.
    NoThread(ErrorKind),
}

/// How a point ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The device passes the point.
    Passed,
    /// The device fails the point.
    Failed(Fault),
    /// The device fails the point, as expected for this reason.
    FailedAsExpected(Fault, String),
    /// The device passes the point, although it was expected to fail for this reason.
    PassedUnexpectedly(String),
    /// The point cannot be checked with this device, for this reason.
    Skipped(&'static str),
}

impl Verdict {
    /// Returns whether the verdict is neither a failure nor an unexpected pass.
    #[must_use]
    pub fn is_ok(&self) -> bool {
        !matches!(self, Verdict::Failed(_) | Verdict::PassedUnexpectedly(_))
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Fault::Deviates(failure) => failure.fmt(f),
            Fault::Panics(message) => write!(f, "the device panics: {message}"),
            Fault::NoThread(kind) => write!(f, "no thread can be started: {kind}"),
            Fault::Hangs(limit) => write!(f, "the device has not returned within {limit:?}"),
        }
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Verdict::Passed => f.write_str("passed"),
            Verdict::Failed(fault) => fault.fmt(f),
            Verdict::FailedAsExpected(fault, reason) => write!(f, "{fault} (expected: {reason})"),
            Verdict::PassedUnexpectedly(reason) => {
                write!(f, "the point passes, but is expected to fail: {reason}")
            }
            Verdict::Skipped(reason) => write!(f, "skipped: {reason}"),
        }
    }
}
