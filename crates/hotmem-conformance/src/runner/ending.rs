//! Defines how the test of a point ends.

use crate::point::Point;
use libtest_mimic::{Completion, Failed};
use std::fmt::Display;

/// How the test of a point ends.
pub(super) enum Ending {
    Passed,
    Skipped(String),
    Failed(String),
}

impl Ending {
    pub(super) fn failed(what: &dyn Display, point: &Point) -> Ending {
        let (section, requirement) = (point.section, point.requirement);
        Ending::Failed(format!("{what} (VIRTIO 1.3, section {section}, {requirement})"))
    }
}

impl From<Ending> for Result<Completion, Failed> {
    fn from(ending: Ending) -> Self {
        match ending {
            Ending::Passed => Ok(Completion::Completed),
            Ending::Skipped(reason) => Ok(Completion::ignored_with(reason)),
            Ending::Failed(message) => Err(message.into()),
        }
    }
}
