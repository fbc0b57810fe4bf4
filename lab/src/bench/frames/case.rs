//! Defines a case of the bench: an allocator, an access pattern, and the size of the machine.

use super::access_pattern::AccessPattern;
use super::subject::Subject;
use crate::bench::random::ORDERS;
use crate::size;
use hotmem::Bytes;

/// The number of operations of each thread if an operation takes about ten nanoseconds.
const OPERATIONS: u64 = 1 << 20;

/// A case of the bench.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::Args)]
pub(super) struct Case {
    #[arg(long, value_enum)]
    pub(super) subject: Subject,
    #[arg(long, value_parser = size::parse)]
    pub(super) size: Bytes,
    #[arg(long)]
    pub(super) order: u32,
    #[arg(long)]
    pub(super) threads: u16,
    #[arg(long, value_enum)]
    pub(super) access: AccessPattern,
}

impl Case {
    /// Returns the case's name in the table: `1T/order0/1thread/pair`.
    pub(super) fn name(&self) -> String {
        let (size, access) = (size::short(self.size), self.access);
        if self.access.is_start() {
            return format!("{size}/{access}");
        }
        let threads = if self.threads == 1 { "thread" } else { "threads" };
        let order = match self.access {
            AccessPattern::Mixed => ORDERS.map(|(order, _)| order.to_string()).join("-"),
            _ => self.order.to_string(),
        };
        format!("{size}/order{order}/{}{threads}/{access}", self.threads)
    }

    /// Returns the case with order 0 if its pattern does not depend on the order, and with one
    /// thread if the pattern does not depend on the number of threads.
    pub(super) fn normalized(self) -> Case {
        match self.access {
            AccessPattern::Mixed => Case { order: 0, ..self },
            access if access.is_start() => Case { order: 0, threads: 1, ..self },
            _ => self,
        }
    }

    /// Returns whether the subject can run this case.
    pub(super) fn is_supported(&self) -> bool {
        let supports_access = match self.subject {
            Subject::Limit => matches!(self.access, AccessPattern::Pair),
            Subject::HotmemMagazine | Subject::HotmemCpuMagazine => match self.access {
                AccessPattern::Pair
                | AccessPattern::Bulk
                | AccessPattern::Random
                | AccessPattern::Interrupts => true,
                AccessPattern::RemoteFree => self.threads_are_pairs(),
                _ => false,
            },
            Subject::HotmemBatches => matches!(self.access, AccessPattern::Bulk),
            _ => return self.is_supported_by_allocator(),
        };
        supports_access && self.order == 0
    }

    /// Returns whether a subject that allocates runs of any order can run this case.
    fn is_supported_by_allocator(&self) -> bool {
        self.subject.supports(self.size)
            && match self.access {
                AccessPattern::PairNeighbours | AccessPattern::BulkNeighbours => {
                    self.threads > 1 && self.order == 0
                }
                AccessPattern::RemoteFree => self.threads_are_pairs(),
                // The other allocators have no zones. Kernel memory must be present: see
                // `measure_hotmem`.
                AccessPattern::PairWithoutMovable | AccessPattern::PairWithoutMovable64Cpus => {
                    self.subject == Subject::Hotmem
                        && self.threads == 1
                        && self.size <= Bytes::gib(16)
                }
                AccessPattern::Announce | AccessPattern::AnnounceAddOnline => {
                    self.subject == Subject::Hotmem
                }
                access if access.nodes().is_some() => {
                    self.subject == Subject::Hotmem && self.threads == 1
                }
                _ => true,
            }
    }

    /// Returns whether remote frees are possible: threads form pairs, or one thread acts as two
    /// CPUs.
    fn threads_are_pairs(&self) -> bool {
        self.threads == 1 || self.threads.is_multiple_of(2)
    }

    /// Returns a number of operations that takes long enough to be measured.
    pub(super) fn operations(&self) -> u64 {
        match self.subject {
            // For more than one frame `bitmap-allocator` searches frame by frame from the bottom,
            // so its operations take long.
            Subject::BitmapAllocator if self.access == AccessPattern::Mixed => OPERATIONS >> 4,
            Subject::BitmapAllocator if self.order > 0 => OPERATIONS >> 6,
            _ => OPERATIONS,
        }
    }

    /// Returns the arguments with which `hotmem` measures the case.
    pub(super) fn arguments(&self, operations: u64) -> Vec<String> {
        let values = [
            ("--subject", self.subject.to_string()),
            ("--size", size::short(self.size)),
            ("--order", self.order.to_string()),
            ("--threads", self.threads.to_string()),
            ("--access", self.access.to_string()),
            ("--operations", operations.to_string()),
        ];
        let values = values.into_iter().flat_map(|(name, value)| [name.into(), value]);
        ["bench".into(), "frames-case".into()].into_iter().chain(values).collect()
    }
}
