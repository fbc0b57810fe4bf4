//! Finds the program that runs a case in a process of its own.

use super::adapters::llfree;
use super::subject::Subject;
use anyhow::Result;
use std::path::PathBuf;

/// Returns the program that runs the cases of a subject: this one, or that of LLFree.
pub(super) fn program(subject: Subject) -> Result<PathBuf> {
    match subject {
        Subject::Llfree => Ok(llfree::program()),
        _ => Ok(std::env::current_exe()?),
    }
}

/// Returns whether the program that runs the cases of a subject was built.
pub(super) fn is_built(subject: Subject) -> bool {
    subject != Subject::Llfree || llfree::program().exists()
}
