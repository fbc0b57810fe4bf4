//! Runs the points in a process: each with a new device, on a thread with a time limit.

mod ending;
mod expected;
mod harness;
mod process;
mod report;
mod suite;
mod verdict;

pub use expected::{ExpectedFailuresError, LineFault};
pub use report::{Report, Tap};
pub use suite::Suite;
pub use verdict::{Fault, Verdict};
