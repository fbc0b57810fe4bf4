//! Makes a test of each point of memory devices, as a VMM's author does, for the model:
//! `cargo test --test memory_points plug/unaligned`.

use hotmem_conformance::MEMORY_POINTS;
use hotmem_conformance::model::Model;
use hotmem_conformance::runner::Suite;
use std::process::ExitCode;

fn main() -> ExitCode {
    Suite::new(MEMORY_POINTS, || Model::memory(None)).main()
}
