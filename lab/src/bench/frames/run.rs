//! Defines one execution of a case.

/// How a case is run.
#[derive(Clone, Copy)]
pub(super) struct Run {
    /// The number of operations of each thread.
    pub(super) operations: u64,
    /// Whether valgrind counts the instructions of the operations.
    pub(super) counts_instructions: bool,
}
