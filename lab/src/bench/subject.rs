//! The subjects of benches that compare an algorithm with the one that it replaces.

/// A subject.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Subject {
    /// The engine.
    Hotmem,
    /// The baseline, which differs only in what is measured.
    Before,
}

impl Subject {
    pub(super) fn name(self) -> &'static str {
        match self {
            Subject::Hotmem => "hotmem",
            Subject::Before => "before",
        }
    }
}
