//! Makes a test of each point, for a test target without Rust's own harness.

use super::suite::Suite;
use super::verdict::Verdict;
use crate::device::Device;
use libtest_mimic::{Arguments, Completion, Trial};
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
        let suite = Arc::new(self);
        let tests = suite.points().iter().map(|point| {
            let suite = Arc::clone(&suite);
            Trial::ignorable_test(point.name, move || match suite.run_point(point) {
                Verdict::Skipped(reason) => Ok(Completion::ignored_with(reason)),
                verdict if verdict.is_ok() => Ok(Completion::Completed),
                verdict => {
                    let (section, requirement) = (point.section, point.requirement);
                    Err(format!("{verdict} (VIRTIO 1.3, section {section}, {requirement})").into())
                }
            })
        });
        libtest_mimic::run(&Arguments::from_args(), tests.collect()).exit_code()
    }
}
