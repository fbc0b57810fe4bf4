//! What the caller has said about turning round.

/// What the caller has said about turning round.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Cancel {
    No,
    Asked,
    /// What was half-way is being brought to an end.
    Turning,
    /// And that is not to be waited for.
    AskedAgain,
}
