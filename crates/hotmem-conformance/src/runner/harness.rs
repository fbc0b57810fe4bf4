//! Makes a test of each point, for a test target without Rust's own harness.

use super::ending::Ending;
use super::process::{self, NoEnding};
use super::suite::Suite;
use super::verdict::Verdict;
use crate::device::Device;
use crate::point::Point;
use libtest_mimic::{Arguments, Trial};
use std::process::ExitCode;
use std::sync::Arc;

impl<F, D> Suite<F>
where
    F: Fn() -> D + Send + Sync + 'static,
    D: Device,
{
    /// Runs the points as tests, by the arguments of the command line: `cargo test NAME` runs the
    /// points whose names contain NAME. Points that are skipped are ignored tests. Several points run at
    /// once, each with a device of its own, unless `--test-threads 1` is given.
    ///
    /// The test target has `harness = false` in Cargo.toml, and its `main` returns this value.
    #[must_use]
    pub fn main(self) -> ExitCode {
        if let Some(name) = process::point_of_this_process() {
            return self.run_only(&name);
        }
        let suite = Arc::new(self);
        let tests = suite.points().iter().map(|point| {
            let suite = Arc::clone(&suite);
            Trial::ignorable_test(point.name, move || suite.test(point).into())
        });
        libtest_mimic::run(&Arguments::from_args(), tests.collect()).exit_code()
    }

    /// Runs the point of this process, and tells the process that has started it.
    fn run_only(&self, name: &str) -> ExitCode {
        let point = self.points().iter().find(|point| point.name == name);
        let is_told = point.is_some_and(|point| process::say(&self.test_here(point)).is_ok());
        if is_told { ExitCode::SUCCESS } else { ExitCode::FAILURE }
    }

    fn test(&self, point: &'static Point) -> Ending {
        if !self.has_processes() {
            return self.test_here(point);
        }
        match (process::run(point.name, self.limit()), self.expected_reason(point)) {
            (Ok(ending), _) => ending,
            (Err(NoEnding::Ended(_) | NoEnding::Hangs), Some(_)) => Ending::Passed,
            (Err(error), _) => Ending::failed(&error, point),
        }
    }

    fn test_here(&self, point: &'static Point) -> Ending {
        match self.run_point(point) {
            Verdict::Skipped(reason) => Ending::Skipped(reason.to_owned()),
            verdict if verdict.is_ok() => Ending::Passed,
            verdict => Ending::failed(&verdict, point),
        }
    }
}
