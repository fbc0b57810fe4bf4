//! Defines a case of the bench.

use super::access::Access;
use super::length::Length;
use super::place::Place;
use super::state::State;
use super::subject::Subject;
use crate::bench::random::ORDERS;
use crate::size;
use hotmem::Bytes;

/// The number of operations of each thread if an operation takes about ten nanoseconds.
const OPERATIONS: u64 = 1 << 20;

/// A case: how an allocator is used, and in which state of the machine.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::Args)]
pub(super) struct Case {
    /// The allocator.
    #[arg(long, value_enum)]
    pub(super) subject: Subject,
    /// The size of the memory.
    #[arg(long, value_parser = size::parse)]
    pub(super) size: Bytes,
    /// The length of an allocation.
    #[arg(long)]
    pub(super) length: Length,
    /// The number of CPUs that run at the same time.
    #[arg(long)]
    pub(super) threads: u16,
    /// The part of the memory from which the case allocates.
    #[arg(long, value_enum)]
    pub(super) place: Place,
    /// What is in use before the case is measured.
    #[arg(long, value_enum)]
    pub(super) state: State,
    /// The order of allocations and frees.
    #[arg(long, value_enum)]
    pub(super) access: Access,
}

impl Case {
    /// Returns the case's name in the table: `1T/order0/1thread/pair`. The place and the state
    /// precede the access pattern, unless they are the usual ones.
    pub(super) fn name(&self) -> String {
        let mut parts = vec![size::short(self.size)];
        if !self.access.is_start() {
            let plural = if self.threads == 1 { "" } else { "s" };
            parts.push(match self.access {
                Access::Mixed => {
                    format!("order{}", ORDERS.map(|(order, _)| order.to_string()).join("-"))
                }
                _ => self.length.to_string(),
            });
            parts.push(format!("{}thread{plural}", self.threads));
            parts.extend(Some(self.place.to_string()).filter(|_| self.place.is_restricted()));
            parts.extend(Some(self.state.to_string()).filter(|_| self.state != self.usual_state()));
        }
        parts.push(self.access.to_string());
        parts.join("/")
    }

    /// Returns the state that the name leaves out.
    const fn usual_state(&self) -> State {
        match self.access {
            Access::Random => State::Full,
            _ => State::Empty,
        }
    }

    /// Returns the case with the values that have no influence on it replaced by the usual ones.
    pub(super) fn normalized(self) -> Case {
        match self.access {
            Access::Mixed => Case { length: Length::FRAME, ..self },
            Access::Random if self.state == State::Empty => Case { state: State::Full, ..self },
            access if access.is_start() => Case {
                length: Length::FRAME,
                threads: 1,
                place: Place::Anywhere,
                state: State::Empty,
                ..self
            },
            _ => self,
        }
    }

    /// Returns whether the parts of the case fit together.
    pub(super) fn is_possible(&self) -> bool {
        let (is_pair, is_alone) = (self.access == Access::Pair, self.threads == 1);
        let fits_state = match self.state {
            State::Empty => !matches!(self.access, Access::Random | Access::Refused),
            State::Full => self.access == Access::Random,
            State::Divided | State::WithoutMovable | State::WithoutMovable64Cpus => {
                is_pair && is_alone
            }
            State::Used90 | State::Used99 | State::Used999 => {
                let is_order = matches!(self.length, Length::Order(_));
                self.access == Access::Random && is_alone && is_order
            }
            State::AllUsed | State::LowUsed | State::LowScattered => {
                self.access == Access::Refused && is_alone
            }
            State::LowHalfUsed | State::LowOneFree => is_pair && is_alone,
            State::Neighbours => {
                matches!(self.access, Access::Pair | Access::Bulk)
                    && !is_alone
                    && self.length == Length::FRAME
            }
        };
        let fits_threads = match self.access {
            Access::RemoteFree => is_alone || self.threads.is_multiple_of(2),
            _ => true,
        };
        fits_state
            && fits_threads
            && (self.place == Place::Low || !self.state.is_of_low_memory())
            && (is_alone || !self.place.is_restricted())
    }

    /// Returns a number of operations that takes long enough to be measured.
    pub(super) fn operations(&self) -> u64 {
        let shift = match self.subject {
            // The time of a search grows with the memory.
            _ if self.access == Access::Refused => 12,
            _ if self.place == Place::Low => 8,
            // For more than one frame `bitmap-allocator` searches frame by frame from the bottom.
            Subject::BitmapAllocator if self.access == Access::Mixed => 4,
            Subject::BitmapAllocator if self.length != Length::FRAME => 6,
            _ if self.state.free_per_million().is_some() => 3,
            _ => 0,
        };
        OPERATIONS >> shift
    }

    /// Returns the number of operations whose instructions are counted. A count has no noise, so
    /// that fewer operations than for times are enough. Bulk traffic needs more of them than the
    /// other patterns, because its rounds are long.
    pub(super) fn counted_operations(&self) -> u64 {
        match self.access {
            Access::Bulk => OPERATIONS >> 2,
            // All operations are the same, apart from a few.
            _ if self.place == Place::Low => 1 << 6,
            Access::Refused => 1 << 6,
            Access::Pair => 1 << 12,
            _ if self.counts_each_operation() => 1 << 12,
            _ => self.operations().min(1 << 14),
        }
    }

    /// Returns whether the instructions of each operation are counted, because operations differ.
    pub(super) fn counts_each_operation(&self) -> bool {
        self.state.free_per_million().is_some() || self.place == Place::Low
    }

    /// Returns the arguments with which `hotmem` measures the case.
    pub(super) fn arguments(&self, operations: u64) -> Vec<String> {
        let values = [
            ("--subject", self.subject.to_string()),
            ("--size", size::short(self.size)),
            ("--length", self.length.to_string()),
            ("--threads", self.threads.to_string()),
            ("--place", self.place.to_string()),
            ("--state", self.state.to_string()),
            ("--access", self.access.to_string()),
            ("--operations", operations.to_string()),
        ];
        let values = values.into_iter().flat_map(|(name, value)| [name.into(), value]);
        ["bench".into(), "frames-case".into()].into_iter().chain(values).collect()
    }
}
