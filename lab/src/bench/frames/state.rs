//! What is in use before a case is measured.

use super::value_name::value_name;
use std::fmt;

/// What is in use before a case is measured.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
pub(super) enum State {
    /// Nothing
    Empty,
    /// A frame and a run of two frames, so that a pageblock is divided already
    Divided,
    /// All memory. The allocations that random traffic exchanges lie in pageblocks at random places
    Full,
    /// 90 % of the memory, at random places
    Used90,
    /// 99 % of the memory, at random places
    Used99,
    /// 99.9 % of the memory, at random places
    #[value(name = "used99.9")]
    Used999,
    /// All memory, and the bench asks for more
    AllUsed,
    /// Half of the frames of low memory, at random places
    LowHalfUsed,
    /// All of low memory except one frame
    LowOneFree,
    /// Low memory
    LowUsed,
    /// Every second frame of low memory
    LowScattered,
    /// All memory except pageblocks side by side, which are divided among the threads in turn. Of
    /// these, each thread of a pair has half of its frames in use
    Neighbours,
    /// Nothing, and the machine has no movable memory
    WithoutMovable,
    /// The same, after 64 CPUs have allocated
    #[value(name = "without-movable-64-cpus")]
    WithoutMovable64Cpus,
}

impl State {
    /// Returns how many of a million parts of the memory are free, if the rest is in use at random
    /// places.
    pub(super) const fn free_per_million(self) -> Option<u64> {
        match self {
            State::Used90 => Some(100_000),
            State::Used99 => Some(10_000),
            State::Used999 => Some(1000),
            _ => None,
        }
    }

    /// Returns whether the machine has no movable memory.
    pub(super) const fn is_without_movable(self) -> bool {
        matches!(self, State::WithoutMovable | State::WithoutMovable64Cpus)
    }

    /// Returns whether low memory differs from the other memory.
    pub(super) const fn is_of_low_memory(self) -> bool {
        matches!(
            self,
            State::LowHalfUsed | State::LowOneFree | State::LowUsed | State::LowScattered
        )
    }
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        value_name(self, f)
    }
}
