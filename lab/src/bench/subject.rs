//! Names the subjects of a bench that compares the engine with a baseline.

/// A subject of the bench.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Subject {
    /// The engine.
    Hotmem,
    /// The baseline: the same work with an earlier algorithm in the measured part.
    Baseline,
}

impl Subject {
    pub(super) fn name(self) -> &'static str {
        match self {
            Subject::Hotmem => "hotmem",
            Subject::Baseline => "before",
        }
    }
}
