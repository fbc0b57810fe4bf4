//! The invariants of `hotmem-invariant`.

pub(crate) use hotmem_invariant::holds;
pub use hotmem_invariant::{Known, first_violation, violated_invariants};
