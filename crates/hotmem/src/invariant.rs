//! Re-exports the checks of invariants, from `hotmem-invariant`.

pub(crate) use hotmem_invariant::{OrRecordViolation, check_invariant};
pub use hotmem_invariant::{Violations, violated_invariants};
