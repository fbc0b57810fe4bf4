//! LLFree, which no registry has. `lab/llfree` is a program that runs the cases of this bench on it.
//! It rounds lengths up to a power of two, as its users do.

use crate::bench::frames::case::Case;
use std::path::{Path, PathBuf};

/// The command that builds the program, once LLFree's source lies at `target/llfree-rs`.
pub(in crate::bench) const BUILD: &str =
    "cargo build --release --manifest-path lab/llfree/Cargo.toml --target-dir target/llfree";

/// Returns the program that runs LLFree's cases.
pub(in crate::bench) fn program() -> PathBuf {
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    workspace.join("target/llfree/release/hotmem-llfree")
}

/// Returns why the allocator cannot do a case.
pub(in crate::bench) fn cannot(case: &Case) -> Option<&'static str> {
    case.place.is_restricted().then_some("it has no zones and no nodes")
}
