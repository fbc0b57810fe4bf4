//! Makes a test of each point of balloons, as a VMM's author does, for the model:
//! `cargo test --test balloon_points report`.

use hotmem_conformance::BALLOON_POINTS;
use hotmem_conformance::model::Model;
use hotmem_conformance::runner::Suite;
use std::process::ExitCode;

fn main() -> ExitCode {
    Suite::new(BALLOON_POINTS, || Model::balloon(None)).main()
}
