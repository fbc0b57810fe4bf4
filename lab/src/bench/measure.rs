//! What a bench measures in a guest.

/// A kind of cost in a guest.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
pub(super) enum Measure {
    Time,
    Instructions,
}
