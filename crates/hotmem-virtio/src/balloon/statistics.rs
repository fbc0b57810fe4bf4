//! Defines and encodes statistics of the guest's memory (5.5.6.3).

/// A statistic of the specification (5.5.6.4). Amounts of memory are in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u16)]
pub enum Statistic {
    /// Memory read from swap.
    SwapIn = 0,
    /// Memory written to swap.
    SwapOut = 1,
    /// Major page faults.
    MajorFaults = 2,
    /// Minor page faults.
    MinorFaults = 3,
    /// Free memory.
    Free = 4,
    /// All memory of the guest.
    Total = 5,
    /// Memory that programs can get without swapping.
    Available = 6,
    /// Memory that can be reclaimed without I/O.
    Caches = 7,
    /// The number of huge pages allocated.
    HugePagesAllocated = 8,
    /// The number of huge pages that could not be allocated.
    HugePagesFailed = 9,
}

/// A set of statistics. Each statistic has at most one value.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemoryStatistics {
    values: [Option<u64>; Self::MAX_ENTRIES],
}

impl MemoryStatistics {
    const MAX_ENTRIES: usize = 10;
    /// The encoded size of an entry in bytes.
    const ENTRY_BYTES: usize = 10;
    /// The maximal encoded size in bytes.
    pub const SIZE: usize = Self::MAX_ENTRIES * Self::ENTRY_BYTES;

    /// Sets the value of a statistic.
    #[must_use]
    pub fn with(mut self, statistic: Statistic, value: u64) -> MemoryStatistics {
        if let Some(entry) = self.values.get_mut(statistic as usize) {
            *entry = Some(value);
        }
        self
    }

    /// Returns the value of a statistic, or `None` if the set does not contain the statistic.
    #[must_use]
    pub fn get(&self, statistic: Statistic) -> Option<u64> {
        self.values.get(statistic as usize).copied().flatten()
    }

    /// Encodes the statistics. Returns a buffer and the number of its bytes that are used.
    #[must_use]
    pub fn to_bytes(&self) -> ([u8; Self::SIZE], usize) {
        let mut bytes = [0; Self::SIZE];
        let values = (0u16..).zip(self.values).filter_map(|(tag, value)| Some((tag, value?)));
        let mut len = 0;
        for (entry, (tag, value)) in bytes.chunks_exact_mut(Self::ENTRY_BYTES).zip(values) {
            entry[..2].copy_from_slice(&tag.to_le_bytes());
            entry[2..].copy_from_slice(&value.to_le_bytes());
            len += Self::ENTRY_BYTES;
        }
        (bytes, len)
    }

    /// Returns the values of the statistics that `first` contains, 0 where `self` has no value. A
    /// driver must send the same statistics each time.
    pub(super) fn with_keys_of(&self, first: &MemoryStatistics) -> MemoryStatistics {
        let mut values = first.values;
        for (entry, value) in values.iter_mut().zip(self.values) {
            *entry = entry.map(|_| value.unwrap_or(0));
        }
        MemoryStatistics { values }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_are_packed() {
        let statistics =
            MemoryStatistics::default().with(Statistic::Total, 0x0102).with(Statistic::Free, 7);
        let (bytes, len) = statistics.to_bytes();
        assert_eq!(&bytes[..len], [4, 0, 7, 0, 0, 0, 0, 0, 0, 0, 5, 0, 2, 1, 0, 0, 0, 0, 0, 0]);
        assert_eq!(statistics.get(Statistic::Total), Some(0x0102));
        assert_eq!(statistics.get(Statistic::Caches), None);
    }

    #[test]
    fn the_same_statistics_are_sent_each_time() {
        let first = MemoryStatistics::default().with(Statistic::Free, 1);
        let later = MemoryStatistics::default().with(Statistic::Total, 5);
        assert_eq!(
            later.with_keys_of(&first),
            MemoryStatistics::default().with(Statistic::Free, 0)
        );
    }
}
