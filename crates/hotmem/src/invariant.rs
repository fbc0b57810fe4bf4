//! Re-exports the checks of invariants, from `hotmem-invariant`.

pub(crate) use hotmem_invariant::check_invariant;
pub use hotmem_invariant::{OrViolation, Violations, violated_invariants};
