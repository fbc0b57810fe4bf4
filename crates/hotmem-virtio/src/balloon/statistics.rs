//! Defines and encodes statistics of the guest's memory (5.5.6.3).

/// A statistic: its tag. Amounts of memory are in bytes.
///
/// Tags 0 to 9 are those of the specification (5.5.6.4). Tags 10 to 15 are Linux's
/// (`include/uapi/linux/virtio_balloon.h`). A device ignores a tag that it does not know (5.5.6.3.2).
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
    /// The number of times that programs were ended because no memory was left.
    OutOfMemoryKills = 10,
    /// The number of allocations that waited for memory to be reclaimed.
    AllocationStalls = 11,
    /// Memory that was examined for reclaim in the background.
    ScannedInBackground = 12,
    /// Memory that allocations examined for reclaim while they waited.
    ScannedByAllocations = 13,
    /// Memory that was reclaimed in the background.
    ReclaimedInBackground = 14,
    /// Memory that allocations reclaimed while they waited.
    ReclaimedByAllocations = 15,
}

/// A set of statistics. Each statistic has at most one value. A kernel sets those that it counts; the
/// device does not get the others.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemoryStatistics {
    values: [Option<u64>; Self::MAX_ENTRIES],
}

impl MemoryStatistics {
    const MAX_ENTRIES: usize = Statistic::ReclaimedByAllocations as usize + 1;
    /// The encoded size of an entry in bytes.
    const ENTRY_BYTES: usize = 10;
    /// A tag that the specification gives no meaning.
    const UNKNOWN_TAG: u16 = u16::MAX;
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

    /// Encodes the statistics. Returns a buffer and the number of its bytes that are used. Without any
    /// statistic, the buffer has one with a tag that no device knows and each must ignore (5.5.6.3.2),
    /// because a driver must give the device a buffer (5.5.6.3.1), and devices refuse an empty one.
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
        if len == 0 {
            bytes[..2].copy_from_slice(&Self::UNKNOWN_TAG.to_le_bytes());
            len = Self::ENTRY_BYTES;
        }
        (bytes, len)
    }

    /// Returns the statistics that `last` contains, with the values of `self`. Where `self` has no
    /// value, the last one stays. A driver must send the same statistics each time (5.5.6.3.1).
    pub(super) fn with_keys_of(&self, last: &MemoryStatistics) -> MemoryStatistics {
        let mut values = last.values;
        for (entry, value) in values.iter_mut().zip(self.values) {
            *entry = entry.map(|last| value.unwrap_or(last));
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
    fn the_tags_are_those_of_the_specification_and_of_linux() {
        use Statistic as S;
        let in_order = [
            S::SwapIn,
            S::SwapOut,
            S::MajorFaults,
            S::MinorFaults,
            S::Free,
            S::Total,
            S::Available,
            S::Caches,
            S::HugePagesAllocated,
            S::HugePagesFailed,
            S::OutOfMemoryKills,
            S::AllocationStalls,
            S::ScannedInBackground,
            S::ScannedByAllocations,
            S::ReclaimedInBackground,
            S::ReclaimedByAllocations,
        ];
        let mut all = MemoryStatistics::default();
        for (tag, statistic) in (0u8..).zip(in_order) {
            let (bytes, len) =
                MemoryStatistics::default().with(statistic, 0x0102_0304_0506_0708).to_bytes();
            assert_eq!(&bytes[..len], [tag, 0, 8, 7, 6, 5, 4, 3, 2, 1], "{statistic:?}");
            all = all.with(statistic, 1);
        }
        assert_eq!(all.to_bytes().1, 16 * 10);
    }

    #[test]
    fn the_same_statistics_are_sent_each_time_and_none_gets_an_invented_value() {
        let last = MemoryStatistics::default().with(Statistic::Free, 1).with(Statistic::Caches, 2);
        let now = MemoryStatistics::default().with(Statistic::Total, 5).with(Statistic::Caches, 6);
        assert_eq!(
            now.with_keys_of(&last),
            MemoryStatistics::default().with(Statistic::Free, 1).with(Statistic::Caches, 6)
        );
    }
}
