//! Re-exports the checks of invariants, from `hotmem-invariant`.

pub(crate) use hotmem_invariant::holds;
pub use hotmem_invariant::{Known, first_violation, violated_invariants};
