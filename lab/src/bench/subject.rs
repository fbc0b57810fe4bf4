//! An algorithm, and the one that it replaces.

/// Whose figures they are.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Subject {
    /// The engine.
    Hotmem,
    /// What differs from it in nothing but the one thing that is measured.
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
